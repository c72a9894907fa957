"""The simulation engine, for programs that use it directly."""

from kernbench.engine.engine import Completion, GraphEngine, RequestHandle, RequestTrace

__all__ = ["Completion", "GraphEngine", "RequestHandle", "RequestTrace"]
