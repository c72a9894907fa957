"""Predefined traffic on a machine: the cost of a transaction, by component, and the rate of a stream of them."""
