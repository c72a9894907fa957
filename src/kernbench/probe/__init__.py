"""Predefined traffic on a machine: what one transaction costs and why, and what a stream of them sustains."""
