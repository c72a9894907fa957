"""kernbench: numerics and contended timing of torch-like programs on a multi-die AI accelerator."""

__version__ = "0.1.0"
