"""Names for the authors of parts."""

from kernbench.components.memory import Memory, MemoryAccess
from kernbench.di.part import PartAttrs, PartUse
from kernbench.engine.machine import Component, Done, Machine, Outcome
from kernbench.engine.thinking import Inbox, ThinkingPart
from kernbench.messages.control import PartOrder

__all__ = [
    "Component",
    "Done",
    "Inbox",
    "Machine",
    "Memory",
    "MemoryAccess",
    "Outcome",
    "PartAttrs",
    "PartOrder",
    "PartUse",
    "ThinkingPart",
]
