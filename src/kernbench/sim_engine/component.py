"""What the class of a part is made of, for those who write one."""

from kernbench.engine.machine import Component, Done, Machine, Outcome
from kernbench.engine.thinking import Inbox, ThinkingPart

__all__ = ["Component", "Done", "Inbox", "Machine", "Outcome", "ThinkingPart"]
