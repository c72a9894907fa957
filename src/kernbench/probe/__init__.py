"""Predefined traffic on a machine: the latency of a transaction, by component, and the rate of transaction streams."""
