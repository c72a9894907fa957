"""Triton kernels on the simulated machine. Import it before ``triton``."""

from kernbench.frontends.triton.installed import MADE_FOR
from kernbench.frontends.triton.running import Refused

__all__ = ["MADE_FOR", "Refused"]
