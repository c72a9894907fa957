"""DTensor in ranks: its state of a process for each rank, attention, and random numbers.

This module is imported with DTensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import _dispatch, _op_schema, _random
from torch.distributed.tensor._api import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard
from torch.nn import functional

from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch.distributed.joining import is_rank
from kernbench.frontends.torch.distributed.meetings import meetings
from kernbench.frontends.torch.generators import HostGenerator
from kernbench.frontends.torch.installed import check_names, run_wrapped
from kernbench.frontends.torch.randoms import ShardOfDraw, draw_whole
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import replace
from kernbench.runtime_api.context import current_context

MADE_FOR: tuple[tuple[Any, str], ...] = (
    (_random, "_RNGStateTracker"),
    (_random, "_rng_tracker"),
    (_op_schema, "_rebuild_tensor_from_dtensor_meta"),
    (_op_schema, "DTensorSpec"),
)
"""The names of PyTorch that are used or replaced here."""
_HANDLERS = "_custom_op_handlers"

# tensors without elements, by which DTensor infers shapes


def _rebuild(spec: Any) -> torch.Tensor:
    """Return a tensor of a distributed tensor's shape, without elements.

    All ranks use the index of SIP 0: PyTorch caches results of such tensors, with their device, for the process.
    """
    meta, name = spec.tensor_meta, spec.mesh.device_type
    is_machine = name in (DEVICE, "cuda") and current_context() is not None
    device = torch.device(DEVICE, 0) if is_machine else torch.device(name)
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=device)


# operators that a program handles itself, such as those of ``loss_parallel``

_OF_PROGRAM: dict[Any, Any] = dict(vars(DTensor._op_dispatcher)[_HANDLERS])  # noqa: SLF001
_OF_RANK: ContextVar[dict[Any, Any] | None] = ContextVar("handlers", default=None)


def _handlers(_: object) -> dict[Any, Any]:
    """Return the handlers of the rank that calls, or of the program. A rank begins with those of the program."""
    if not is_rank():
        return _OF_PROGRAM
    handlers = _OF_RANK.get()
    if handlers is None:
        _OF_RANK.set(handlers := dict(_OF_PROGRAM))
    return handlers


def _set_handlers(_: object, handlers: dict[Any, Any]) -> None:
    present = _handlers(_)
    contents = dict(handlers)
    present.clear()
    present.update(contents)


# attention


def _is_kept(placement: Placement, axis: int, operands: Sequence[DTensor]) -> bool:
    """Return whether attention can stay divided along an axis of the mesh: by batch or by heads, evenly."""
    if not isinstance(placement, Shard) or placement.dim not in (0, 1):
        return False
    n = operands[0].device_mesh.size(axis)
    return all(x.shape[placement.dim] % n == 0 for x in operands)


def _distribute_mask(mask: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], dims: int) -> DTensor:
    """Return a mask divided like the operands, along the axes that it has."""
    if not isinstance(mask, DTensor):
        mask = DTensor.from_local(mask, mesh, [Replicate()] * mesh.ndim, run_check=False)

    def fit(placement: Placement) -> Placement:
        dim = placement.dim + mask.dim() - dims if isinstance(placement, Shard) else -1
        return Shard(dim) if dim >= 0 and mask.shape[dim] > 1 else Replicate()

    return mask.redistribute(mesh, [fit(placement) for placement in placements])


def _attend(
    query: DTensor, key: DTensor, value: DTensor, attn_mask: torch.Tensor | None = None, *args: Any, **options: Any
) -> DTensor:
    """Compute the attention of each rank's batches or heads by the machine's kernel."""
    mesh, operands = query.device_mesh, (query, key, value)
    placements = [
        placement if _is_kept(placement, axis, operands) else Replicate()
        for axis, placement in enumerate(query.placements)
    ]
    q, k, v = [x.redistribute(mesh, placements).to_local() for x in operands]
    mask = None
    if attn_mask is not None:
        mask = _distribute_mask(attn_mask, mesh, placements, query.dim()).to_local()
    result = functional.scaled_dot_product_attention(q, k, v, mask, *args, **options)
    return DTensor.from_local(result, mesh, placements, run_check=False)


# random numbers


_Tracker: Any = _random._RNGStateTracker  # noqa: SLF001 - PyTorch's extension point


def _agree(generator: torch.Generator, ranks: list[int]) -> None:
    """Set the generators of ``ranks`` to the state of the first, as PyTorch does. It takes no simulated time."""
    own = HostGenerator.get_state(generator)
    place = f"mesh of ranks {ranks}"
    states = meetings().exchange("state of random numbers", place, current().distributed.get_rank(), ranks, own)
    if not torch.equal(states[0], own):
        HostGenerator.set_state(generator, states[0])


class _WholeDraws(_Tracker):  # type: ignore[misc]
    """The tracker of random operators of DTensor. The numbers are those that one process would draw."""

    def __init__(self) -> None:
        self._use_distribute_region = True

    @contextmanager
    def _distribute_region(self, spec: Any, generator: torch.Generator | None = None) -> Iterator[None]:
        if not is_rank():
            yield
            return
        source = torch.default_generator if generator is None else generator
        _agree(source, sorted(spec.mesh.mesh.flatten().tolist()))
        local, offsets = compute_local_shape_and_global_offset(spec.shape, spec.mesh, spec.placements)
        with draw_whole(ShardOfDraw(tuple(spec.shape), tuple(local), tuple(offsets), generator)):
            yield


def install() -> None:
    """Replace the state that DTensor stores for a process."""
    check_names(MADE_FOR)
    replace(_op_schema, "_rebuild_tensor_from_dtensor_meta", _rebuild)
    replace(_dispatch.OpDispatcher, _HANDLERS, property(_handlers, _set_handlers))
    replace(_random, "_rng_tracker", _WholeDraws())
    run_wrapped(torch.ops.aten.scaled_dot_product_attention.default, DTensor, _attend)


install()
