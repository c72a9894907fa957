"""Predefined traffic on a machine: the cost of one transaction and its parts, and the rate of a stream of them."""
