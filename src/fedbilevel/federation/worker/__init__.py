"""A computation in a child process, whose death does not end its parent."""
