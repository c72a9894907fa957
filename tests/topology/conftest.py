"""Machines of parts that do nothing."""

from bare_machines import compiled, default_text, registry

__all__ = ["compiled", "default_text", "registry"]
