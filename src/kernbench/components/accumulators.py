"""What the matrix unit keeps of results: those that the next dot adds to need not pass through TCM."""

from __future__ import annotations

from kernbench.messages.commands import DotCommand
from kernbench.triton_emu.tile_plans import AccumulatorUse


class Accumulators:
    """The accumulators of a matrix unit while a kernel runs: ``capacity`` bytes, for whole results.

    A dot has the place of what it adds to. If its own result does not stay, the place is free as it begins: the tiles
    of dots pass the unit in their order, so that those of another come behind its own.
    """

    __slots__ = ("_free", "_kept")

    def __init__(self, capacity: int) -> None:
        self._free = capacity
        self._kept: set[int] = set()  # by the addresses that the results have in TCM

    def enter(self, dot: DotCommand, only_accumulated: bool) -> AccumulatorUse:
        """``dot`` begins: where its accumulator lies, and its result, which may be ``only_accumulated`` by the next."""
        acc, result = dot.acc, dot.dst
        is_here = acc is not None and acc.address in self._kept
        if acc is not None and is_here:
            self._kept.remove(acc.address)
            self._free += acc.nbytes
        stays = only_accumulated and result.nbytes <= self._free
        if stays:
            self._kept.add(result.address)
            self._free -= result.nbytes
        return AccumulatorUse(fetched=acc is not None and not is_here, stored=not stays)
