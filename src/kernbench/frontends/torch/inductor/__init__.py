"""PyTorch's compiler for device ``ahbm``: dynamo, AOTAutograd, and Inductor, whose Triton kernels run on the machine.

The first call of ``torch.compile`` imports this package. It replaces Triton's compiler before Inductor imports Triton.
"""

import kernbench.frontends.triton.installed  # noqa: F401 - see above
