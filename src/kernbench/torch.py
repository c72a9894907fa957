"""PyTorch tensors on the simulated machine: ``torch.device("ahbm")``."""

from kernbench.frontends.torch.device_names import as_cuda
from kernbench.frontends.torch.distributed.processes import rank_process
from kernbench.frontends.torch.installed import MADE_FOR
from kernbench.frontends.torch.tensor import AhbmTensor

__all__ = ["MADE_FOR", "AhbmTensor", "as_cuda", "rank_process"]
