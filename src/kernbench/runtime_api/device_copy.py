"""Copies that the PEs make of their own shards."""

from __future__ import annotations

from kernbench.kernels.windows import copy_windows
from kernbench.messages.requests import KernelLaunchMsg, KernelRef
from kernbench.runtime_api.layout import TensorLayout


def copy_launch(source: TensorLayout, target: TensorLayout) -> KernelLaunchMsg:
    """Every owner copies its shards from ``source`` to ``target``, which lies in the same way on the same PEs."""
    item = source.dtype.itemsize
    lines = (
        (shard.cube, shard.pe, shard.offset_bytes, shard.offset_bytes, shard.nbytes // item, item, item)
        for shard in source.shards
    )
    return KernelLaunchMsg(
        name="clone",
        kernel=KernelRef(name="clone", function=copy_windows),
        args=(source.argument, target.argument, tuple(n for line in lines for n in line), 1, source.dtype.name),
        targets=source.owners,
    )
