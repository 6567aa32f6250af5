"""Tools of the documentation: mkdocs hooks, screenshots and the layer diagram."""
