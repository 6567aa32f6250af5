"""Problems, hypergradients, tree arithmetic and the paper's constants."""
