"""HBM slices: where an address lies, what its banks take, and whose turn it is."""
