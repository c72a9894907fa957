"""What the class of a part is made of, for those who write one."""

from kernbench.engine.machine import Component, Done, Machine, Outcome

__all__ = ["Component", "Done", "Machine", "Outcome"]
