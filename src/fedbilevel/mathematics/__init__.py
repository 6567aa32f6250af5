"""Problems, hypergradients, tree arithmetic and the types of settings."""
