"""Kernels are run on the PE of the language's tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "triton_emu"))
