"""Definitions that every package uses: units, ids, types, operators, errors, and the version."""

__version__ = "0.3.0"
