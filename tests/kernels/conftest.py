"""Kernels are run on the PE of the language's tests."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[1] / "triton_emu"))

# A kernel makes many commands: few examples, broad ones; a loaded machine is slow, not wrong.
settings.register_profile("kernels", deadline=None, max_examples=30)
settings.load_profile("kernels")
