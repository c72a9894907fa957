"""The message queues of a PE."""

from __future__ import annotations

from kernbench.di.registry import register
from kernbench.sim_engine.component import Component


@register("builtin.pe_ipcq", kind="pe_ipcq")
class PeIpcq(Component):
    """A place for queue pairs; a PE has none until some are installed."""
