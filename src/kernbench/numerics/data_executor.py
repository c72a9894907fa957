"""The replay under the name in the specification."""

from __future__ import annotations

from kernbench.numerics.replay import Replay as DataExecutor

__all__ = ["DataExecutor"]
