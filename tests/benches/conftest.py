"""Benches run on the fake engine of the runtime's tests, which computes kernels with NumPy."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime_api"))
