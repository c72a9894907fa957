"""kernbench: numerics and contended timing of torch-like programs on a multi-die AI accelerator."""

from kernbench.common import __version__ as __version__
