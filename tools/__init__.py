"""What builds the documentation, beside mkdocs: hooks that `mkdocs.yml` names."""
