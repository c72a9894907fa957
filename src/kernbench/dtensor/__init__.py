"""Tensors over a mesh of ranks, after ``torch.distributed.tensor``: placements, and operators that choose them."""

from kernbench.dtensor.api import DTensor, distribute_tensor
from kernbench.dtensor.device_mesh import DeviceMesh, init_device_mesh
from kernbench.dtensor.placements import Partial, Placement, Replicate, Shard

__all__ = [
    "DTensor",
    "DeviceMesh",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "distribute_tensor",
    "init_device_mesh",
]
