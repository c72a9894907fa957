"""Which PE moves what in a collective: the tables that its kernel gets, flat tuples of whole numbers."""

from __future__ import annotations

from kernbench.common.errors import InputError
from kernbench.kernels.shares import blocks
from kernbench.policy.placement.views import ShardView, first_copies
from kernbench.runtime_api.layout import TensorLayout


def shard_table(layout: TensorLayout) -> tuple[int, ...]:
    """``(cube, pe, offset_bytes, n_elem)`` of every shard and copy."""
    size = layout.dtype.itemsize
    shards = layout.shards
    return tuple(value for s in shards for value in (s.cube, s.pe, s.offset_bytes, s.nbytes // size))


def list_table(layout: TensorLayout) -> tuple[int, ...]:
    """``(cube, pe, in_offset, n_elem, out_offset, stride)`` of every shard and copy, all in bytes but ``n_elem``.

    For tensors of this layout, one for each rank, that lie behind each other in virtual addresses.
    """
    size = layout.dtype.itemsize
    lines = ((s.cube, s.pe, s.offset_bytes, s.nbytes // size, s.offset_bytes, layout.nbytes) for s in layout.shards)
    return tuple(value for line in lines for value in line)


def part_table(name: str, part: TensorLayout, whole: TensorLayout) -> tuple[int, ...]:
    """The same where ``whole`` has a block for every rank, one behind the other, each of the size of ``part``.

    InputError for layouts in which blocks are not behind each other in virtual addresses.
    """
    if not (_copies(part) and _copies(whole) and part.owners == whole.owners):
        _check_in_order(name, part, copies=True)
        _check_in_order(name, whole)
    return list_table(part)


def exchange_table(name: str, given: TensorLayout, taken: TensorLayout, ranks: int) -> tuple[int, ...]:
    """The same for two tensors with a block for every rank: the PEs that own them share every block evenly."""
    size = given.dtype.itemsize
    stride = given.nbytes // ranks
    count = stride // size
    if _copies(given) and _copies(taken) and given.owners == taken.owners:
        shares = [(owner, (0, count)) for owner in given.owners]
    else:
        _check_in_order(name, given)
        _check_in_order(name, taken)
        each = -(-count // len(given.owners))
        shares = list(zip(given.owners, blocks(count, each), strict=False))
    lines = ((cube, pe, at * size, n, at * size, stride) for (_, cube, pe), (at, n) in shares)
    return tuple(value for line in lines for value in line)


def _copies(layout: TensorLayout) -> bool:
    """Whether every shard holds all of the tensor, and there are several."""
    return len(layout.views) > 1 and all(view.window == layout.whole for view in layout.views)


def _check_in_order(name: str, layout: TensorLayout, *, copies: bool = False) -> None:
    alone = copies or len(first_copies(layout.views)) == len(layout.views)
    if not alone or not all(_in_order(layout, view) for view in layout.views):
        raise InputError(
            f"{name}: {layout.name} ({layout.dp}) does not lie in memory in the order of its elements, each once. A "
            f"tensor with a block for each rank is spread by row_wise, or both are replicated over the same PEs; for "
            f"any other layout give a list of tensors, one for each rank"
        )


def _in_order(layout: TensorLayout, view: ShardView) -> bool:
    """Whether the shard holds neighbouring elements, where they come in the tensor."""
    axis = next((at for at, extent in enumerate(view.shape) if extent > 1), len(view.shape))
    first = 0
    for (start, _), extent in zip(view.window.bounds, layout.shape, strict=True):
        first = first * extent + start
    whole_behind = view.shape[axis + 1 :] == layout.shape[axis + 1 :]
    return whole_behind and first * layout.dtype.itemsize == view.spec.offset_bytes
