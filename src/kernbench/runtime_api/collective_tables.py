"""Tables of collectives: the part of each PE in the tensors, as an argument of the kernel.

A table follows the layout of tensors, so that every PE works on its own shards. Or it divides any elements in a
tensor's memory among PEs that the caller selects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from kernbench.common.dtypes import DType
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.kernels.shares import blocks
from kernbench.messages.requests import LaunchArg
from kernbench.runtime_api.collective_calls import CollectiveTensor
from kernbench.runtime_api.collective_pes import CollectivePes
from kernbench.runtime_api.layout import TensorLayout

BLOCK_COLUMNS = 6
"""The columns of ``list_table``"""
STRETCH_COLUMNS = 4
"""The columns of ``stretch_table``"""
EXCHANGE_COLUMNS = 7
"""The columns of ``exchanged_blocks``"""


def list_table(layout: TensorLayout) -> tuple[int, ...]:
    """Return ``(cube, pe, in_offset, n_elem, out_offset, stride)`` of every shard, replicas included.

    All numbers but ``n_elem`` are in bytes. The table is for tensors of this layout, one for each rank, at consecutive
    virtual addresses.
    """
    size = layout.dtype.itemsize
    lines = ((s.cube, s.pe, s.offset_bytes, s.nbytes // size, s.offset_bytes, layout.nbytes) for s in layout.shards)
    return tuple(value for line in lines for value in line)


def part_table(name: str, part: TensorLayout, full: TensorLayout) -> tuple[int, ...]:
    """Return the ``list_table`` of tensor ``part`` for a collective with ``full``: one block per rank, in rank order.

    A block of ``full`` has the size of ``part``. Raises InputError for layouts in which blocks are not at consecutive
    virtual addresses.
    """
    if not (_copies(part) and _copies(full) and part.owners == full.owners):
        _check_in_order(name, part, copies=True)
        _check_in_order(name, full)
    return list_table(part)


def exchange_table(name: str, inputs: TensorLayout, outputs: TensorLayout, ranks: int) -> tuple[int, ...]:
    """Return a table in the format of ``list_table`` for two tensors with a block for every rank.

    Every block is divided evenly among the PEs that own the tensors. Raises InputError as ``part_table`` does.
    """
    size = inputs.dtype.itemsize
    stride = inputs.nbytes // ranks
    count = stride // size
    if _copies(inputs) and _copies(outputs) and inputs.owners == outputs.owners:
        shares = [(owner, (0, count)) for owner in inputs.owners]
    else:
        _check_in_order(name, inputs)
        _check_in_order(name, outputs)
        share = -(-count // len(inputs.owners))
        shares = list(zip(inputs.owners, blocks(count, share), strict=False))
    lines = ((cube, pe, at * size, n, at * size, stride) for (_, cube, pe), (at, n) in shares)
    return tuple(value for line in lines for value in line)


def _copies(layout: TensorLayout) -> bool:
    """Return True when there are several shards and each holds the complete tensor."""
    return len(layout.views) > 1 and all(view.window == layout.whole for view in layout.views)


def _check_in_order(name: str, layout: TensorLayout, *, copies: bool = False) -> None:
    if (layout.has_copies and not copies) or not layout.is_row_major:
        raise InputError(
            f"{name}: {layout.name} ({layout.dp}) is not stored in the order of its elements, each once. Spread a "
            f"tensor with a block for each rank by row_wise, or replicate both tensors over the same PEs; for any "
            f"other layout give a list of tensors, one for each rank"
        )


def block_table(
    name: str, inputs: Sequence[TensorLayout], outputs: Sequence[TensorLayout], world_size: int
) -> tuple[int, ...]:
    """Return the table of a collective between tensors with a block for each rank, in lists or in one tensor.

    Raises InputError for layouts that do not fit each other.
    """
    a, b = inputs[0], outputs[0]
    if len(inputs) == len(outputs) == 1 and world_size > 1:
        if a.size == b.size:
            return exchange_table(name, a, b, world_size)
        return part_table(name, *sorted((a, b), key=lambda layout: layout.size))
    wanted = CollectiveTensor.of(a)
    for other in (*inputs, *outputs):
        if CollectiveTensor.of(other) != wanted:
            raise InputError(
                f"{name}: {a.name} ({a.dp}) and {other.name} ({other.dp}) differ in shape, dtype or layout"
            )
    return list_table(a)


@value
class Stretch:
    """``size`` consecutive elements of ``dtype`` in the memory of a tensor, from byte ``offset`` on.

    ``is_whole``: it is the complete tensor, in the tensor's own type.
    """

    layout: TensorLayout
    offset: int
    size: int
    dtype: DType
    is_whole: bool

    @classmethod
    def whole(cls, layout: TensorLayout) -> Stretch:
        """Return all elements of a tensor."""
        return cls(layout, 0, layout.size, layout.dtype, is_whole=True)

    @property
    def va(self) -> int:
        """The virtual address of the first element."""
        return self.layout.va + self.offset

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.dtype.itemsize

    def split(self, sizes: Sequence[int]) -> list[Stretch]:
        """Return consecutive parts of these sizes, in elements."""
        item, ends = self.dtype.itemsize, list(accumulate(sizes, initial=0))
        return [
            Stretch(self.layout, self.offset + first * item, size, self.dtype, is_whole=False)
            for first, size in zip(ends, sizes, strict=False)
        ]

    def describe(self, pes: CollectivePes) -> CollectiveTensor:
        """Return the properties that all ranks must agree on. They need not agree on where the elements are."""
        return CollectiveTensor(shape=(self.size,), dtype=self.dtype.name, places=pes.places, policy=f"PEs {pes}")

    def check_in_order(self, name: str) -> None:
        """Raise InputError unless the tensor stores its elements in order, each once."""
        if self.layout.has_copies or not self.layout.is_row_major:
            raise InputError(
                f"{name}: {self.layout.name} ({self.layout.dp}) is not stored in the order of its elements, each once, "
                f"so other PEs than its owners cannot divide it; spread it by row_wise"
            )


def _lowest(stretches: Sequence[Stretch]) -> TensorLayout:
    return min((stretch.layout for stretch in stretches), key=lambda layout: layout.va)


def pointer_to(stretches: Sequence[Stretch]) -> LaunchArg:
    """Return the tensor to which the tables of ``stretches`` are relative, as an argument; None without stretches."""
    return _lowest(stretches).argument if stretches else None


def starts_of(stretches: Sequence[Stretch]) -> tuple[int, ...]:
    """Return the element at which each stretch begins, counted from ``pointer_to``."""
    return tuple((stretch.va - _lowest(stretches).va) // stretch.dtype.itemsize for stretch in stretches)


def stretch_table(stretches: Sequence[Stretch], pes: CollectivePes) -> tuple[int, ...]:
    """Return ``(cube, pe, offset_bytes, n_elem)`` of the parts of all stretches, which are divided evenly as one."""
    item = stretches[0].dtype.itemsize
    lines = _divide([stretch.size for stretch in stretches], pes.within(sum(stretch.nbytes for stretch in stretches)))
    starts = starts_of(stretches)
    return tuple(
        number for cube, pe, i, first, count in lines for number in (cube, pe, (starts[i] + first) * item, count)
    )


def strided_table(
    inputs: Sequence[Stretch],
    outputs: Sequence[Stretch],
    parts: Sequence[Stretch],
    pes: CollectivePes,
    *,
    listed: bool,
) -> tuple[int, ...]:
    """Return a table in the format of ``list_table``: each part of ``parts`` is a block of the other tensor.

    ``parts`` is ``inputs`` or ``outputs``. The blocks of the other tensor follow each other, in rank order. If they are
    ``listed``, an argument of the kernel has the beginnings of blocks, and the table is relative to these.
    """
    item = parts[0].dtype.itemsize
    lines = _divide([part.size for part in parts], pes.within(sum(part.nbytes for part in parts)))
    come, go = ((0,) * len(parts) if listed and side is not parts else starts_of(side) for side in (inputs, outputs))
    return tuple(
        number
        for cube, pe, i, first, count in lines
        for number in (cube, pe, (come[i] + first) * item, count, (go[i] + first) * item, parts[i].nbytes)
    )


def exchanged_blocks(
    inputs: Sequence[Stretch], outputs: Sequence[Stretch], places: Sequence[int], pes: CollectivePes
) -> tuple[int, ...]:
    """Return ``(cube, pe, peer, in_at, n_in, out_at, n_out)`` of the blocks that each PE sends and receives.

    ``inputs[i]`` goes to rank ``places[i]``, and ``outputs[i]`` comes from it; either may be empty. Both PEs of a
    message divide its block among as many PEs.
    """
    come, go = starts_of(inputs), starts_of(outputs)
    lines: dict[tuple[int, int, int], list[int]] = {}
    for side, stretches, starts in ((0, inputs, come), (2, outputs, go)):
        for peer, stretch, start in zip(places, stretches, starts, strict=bool(stretches)) if stretches else ():
            for cube, pe, _, first, count in _divide([stretch.size], pes.within(stretch.nbytes)):
                lines.setdefault((cube, pe, peer), [0, 0, 0, 0])[side : side + 2] = [start + first, count]
    return tuple(number for key, numbers in sorted(lines.items()) for number in (*key, *numbers))


def _divide(sizes: Sequence[int], places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield ``(cube, pe, i, first, count)``: the elements of part i for each PE, if all parts are divided as one."""
    share = max(1, -(-sum(sizes) // len(places)))
    if not any(sizes):
        yield (*places[0], 0, 0, 0)  # a collective without elements has a PE all the same
    before = 0
    for i, size in enumerate(sizes):
        at = 0
        while at < size:
            number = (before + at) // share
            count = min(size - at, (number + 1) * share - before - at)
            yield (*places[number], i, at, count)
            at += count
        before += size
