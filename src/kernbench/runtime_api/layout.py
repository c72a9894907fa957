"""Where a tensor lies: the shards in memory and the part of the tensor that each holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from kernbench.common.dtypes import DType
from kernbench.messages.mapping import MappedShard
from kernbench.messages.requests import PeCoord, TensorArg
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr
from kernbench.policy.placement.deploy import Deployment
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.placement.geometry import Window
from kernbench.policy.placement.views import Piece, ShardView, first_copies, pieces
from kernbench.runtime_api.work import TensorKey


@dataclass(frozen=True, slots=True)
class Stretch:
    """``nbytes`` from ``pa`` of one shard, and the piece of the tensor that lies there."""

    pa: int
    nbytes: int
    piece: Piece


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorLayout:
    """A tensor in the memory of one SIP. ``views`` and the deployment's shards are in the same order.

    ``made_as``: the shape that ``dp`` splits, when that is another than its own.
    """

    shape: tuple[int, ...]
    dtype: DType
    dp: DPPolicy
    sip: int
    va: int
    deployment: Deployment
    views: tuple[ShardView, ...] = field(repr=False)
    made_as: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.deployment.name

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, once."""
        return self.deployment.nbytes

    @property
    def size(self) -> int:
        """How many elements."""
        return prod(self.shape)

    @property
    def key(self) -> TensorKey:
        """What identifies it while it lives."""
        return self.sip, self.va

    @property
    def argument(self) -> TensorArg:
        """It as an argument of a kernel."""
        return TensorArg(name=self.name, va=self.va, shape=self.shape, dtype=self.dtype, owners=self.owners)

    @property
    def whole(self) -> Window:
        """All of its elements."""
        return Window.whole(self.shape)

    @property
    def shards(self) -> tuple[MappedShard, ...]:
        """Its parts and copies, in (cube, pe) order."""
        return self.deployment.shards

    @property
    def parts(self) -> Iterator[tuple[ShardView, MappedShard]]:
        """Every shard, with what it holds and where it lies."""
        return zip(self.views, self.shards, strict=True)

    @cached_property
    def owners(self) -> tuple[PeCoord, ...]:
        """The PEs that hold a shard, in order."""
        return tuple(sorted({(shard.sip, shard.cube, shard.pe) for shard in self.shards}))

    @cached_property
    def _pa_by_view(self) -> dict[ShardView, int]:
        return {view: shard.pa for view, shard in self.parts}

    def pa_of(self, view: ShardView) -> int:
        """Where a shard begins, an encoded physical address."""
        return self._pa_by_view[view]

    def first_stretches(self, window: Window) -> list[Stretch]:
        """Where the elements of ``window`` lie, each once: in the first copy."""
        return [self._stretch(piece) for piece in pieces(first_copies(self.views), window)]

    def place_of(self, index: tuple[int, ...], fmt: AddressFormat) -> str:
        """Which PE and address hold the first copy of one element, for a reader."""
        element = Window(tuple((at, at + 1) for at in index))
        stretch = self.first_stretches(element)[0]
        spec = stretch.piece.view.spec
        return f"sip{spec.sip}.cube{spec.cube}.pe{spec.pe}, {PhysAddr.decode(stretch.pa, fmt)!r}"

    def _stretch(self, piece: Piece) -> Stretch:
        offset, nbytes = piece.span(self.dtype.itemsize)
        return Stretch(self.pa_of(piece.view) + offset, nbytes, piece)
