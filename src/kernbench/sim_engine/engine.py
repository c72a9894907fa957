"""The simulation engine, for programs that use it directly."""

from kernbench.engine.engine import GraphEngine, Observer
from kernbench.engine.requests import Completion, Limits, RequestHandle, RequestTrace

__all__ = ["Completion", "GraphEngine", "Limits", "Observer", "RequestHandle", "RequestTrace"]
