"""Problems, hypergradients, tree arithmetic and what settings may be."""
