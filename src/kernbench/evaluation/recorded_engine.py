"""An engine that evaluations read their runs off."""

from __future__ import annotations

from kernbench.ccl.config import CclConfig
from kernbench.engine.engine import GraphEngine, RequestHandle
from kernbench.messages.requests import HostMsg
from kernbench.runtime_api.context import NoParams, RuntimeContext
from kernbench.topology.builder import Topology


class RecordedEngine(GraphEngine):
    """A GraphEngine that keeps the handles of all requests."""

    def __init__(self, topology: Topology, *, enable_data: bool = True) -> None:
        super().__init__(topology, enable_data=enable_data)
        self.handles: list[RequestHandle] = []

    def submit(self, msg: HostMsg) -> RequestHandle:
        """Start a request now and return at once."""
        handle = super().submit(msg)
        self.handles.append(handle)
        return handle


def context_on(engine: RecordedEngine, ccl: CclConfig) -> RuntimeContext[NoParams]:
    """A host's program on it, without parameters, whose collectives are configured like this."""
    return RuntimeContext(engine, ccl=ccl)
