"""The simulation engine, for programs that use it directly."""

from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Completion, RequestHandle, RequestTrace

__all__ = ["Completion", "GraphEngine", "RequestHandle", "RequestTrace"]
