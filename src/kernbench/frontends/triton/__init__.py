"""Triton kernels on the simulated machine. Importing this package selects Triton's interpreter, which runs them."""

import os
import sys

_SWITCH = "TRITON_INTERPRET"

if "triton" in sys.modules and os.environ.get(_SWITCH) != "1":
    raise ImportError("import kernbench.triton before triton, which compiles for a GPU otherwise")
os.environ[_SWITCH] = "1"
