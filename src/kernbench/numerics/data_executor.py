"""The replay, by the name that the specification has for it."""

from __future__ import annotations

from kernbench.numerics.replay import Replay as DataExecutor

__all__ = ["DataExecutor"]
