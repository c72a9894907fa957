"""The class ``Replay`` under the name that the specification uses."""

from __future__ import annotations

from kernbench.numerics.replay import Replay as DataExecutor

__all__ = ["DataExecutor"]
