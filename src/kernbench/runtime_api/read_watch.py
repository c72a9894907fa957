"""Report faults in elements that the host reads: unwritten elements, and replicas that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from kernbench.common.dtypes import Array
from kernbench.common.program_line import calling_line
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine, HostRead, SomeElements, UnlikeCopies
from kernbench.messages.requests import PeCoord
from kernbench.policy.placement.geometry import Index, Window
from kernbench.runtime_api.arrays import Tolerance, errors_of, first_true, tolerance_for
from kernbench.runtime_api.layout import ShardStretch, TensorLayout
from kernbench.runtime_api.transfers import copies


@value(kw_only=True)
class Look:
    """A read of a tensor, from time ``start_ps`` on. ``held``: the content of ``window`` in the first replica.

    ``index``: the elements of the window that the program uses. ``tolerance``: the allowed difference between replicas;
    by default the tolerance of the element type.
    """

    action: Literal["read", "assert_close"]
    layout: TensorLayout
    window: Window
    held: Array
    start_ps: int
    index: Any = ...
    tolerance: Tolerance | None = None

    @property
    def stretches(self) -> list[ShardStretch]:
        """The inspected stretches: those of the first replica for a read, of all replicas for a comparison."""
        compared = self.action == "assert_close"
        return self.layout.all_stretches(self.window) if compared else self.layout.first_stretches(self.window)

    def mark_wanted(self) -> Array:
        """Return the elements of the window that the program uses, as a mask of bools."""
        wanted = np.zeros(self.window.shape, np.bool_)
        wanted[self.index] = True
        return wanted


@value
class _Unlike:
    """A replica that differs from the first: the index of its first different element and the value there."""

    pe: PeCoord
    index: Index
    held: float


class ReadWatch:
    """Checks of the elements that the host reads, in no simulated time."""

    __slots__ = ("_engine",)

    def __init__(self, engine: GraphEngine) -> None:
        self._engine = engine

    @property
    def is_on(self) -> bool:
        """True when an observer tracks writes."""
        return self._engine.tracks_writes

    def check(self, look: Look) -> None:
        """Report to observers unwritten elements, and replicas that are not close to the first replica."""
        self._check_written(look)
        if look.layout.has_copies:
            self._check_copies(look)

    def _check_written(self, look: Look) -> None:
        missing = self._find_missing(look)
        if missing is None:
            return
        wanted = look.mark_wanted()
        missing &= wanted
        if missing.any():
            index = look.window.outward(first_true(missing))
            holder = next(stretch for stretch in look.layout.stretches_of(index) if not self._is_written(stretch))
            elements, read = _describe_elements(look, missing, wanted, index, holder), self._read(look)
            for observer in self._engine.observers:
                observer.read_unwritten(read, elements)

    def _find_missing(self, look: Look) -> Array | None:
        """Return the unwritten elements of the window, as a mask of bools; None if all are written."""
        missing = None
        for stretch in look.stretches:
            written = self._engine.written(stretch.pa, stretch.nbytes)
            if not written.all():
                missing = np.zeros(look.window.shape, np.bool_) if missing is None else missing
                complete = np.logical_and.reduce(written.reshape(-1, look.layout.dtype.itemsize), axis=1)
                missing[stretch.piece.target.index] |= ~stretch.elements(complete)
        return missing

    def _check_copies(self, look: Look) -> None:
        tolerance = look.tolerance or tolerance_for(look.layout.dtype)
        wanted, differ = look.mark_wanted(), np.zeros(look.window.shape, np.bool_)
        unlike: list[_Unlike] = []
        owners = 0
        for copy in copies(look.layout, look.window, look.held, self._engine.read_memory):
            owners += 1
            if copy.held is None:
                continue
            here = copy.part.index
            errors = errors_of(copy.held, np.asarray(look.held[here]), tolerance, equal_nan=True)
            wrong = errors.wrong & wanted[here]
            if wrong.any():
                differ[here] |= wrong
                at = first_true(wrong)
                unlike.append(_Unlike(copy.pe, look.window.outward(copy.part.outward(at)), float(copy.held[at])))
        if unlike:
            self._tell_unlike(look, unlike, (differ, wanted), owners)

    def _tell_unlike(self, look: Look, unlike: Sequence[_Unlike], masks: tuple[Array, Array], owners: int) -> None:
        first = unlike[0]
        reference, *further = look.layout.stretches_of(first.index)
        holder = next(stretch for stretch in further if stretch.pe == first.pe)
        differing = UnlikeCopies(
            pes=tuple(copy.pe for copy in unlike),
            owners=owners,
            held=first.held,
            first_held=float(look.held[look.window.inward(first.index)]),
            first_pe=reference.pe,
            written=self._is_written(holder),
        )
        elements, read = _describe_elements(look, *masks, first.index, holder), self._read(look)
        for observer in self._engine.observers:
            observer.read_unlike(read, elements, differing)

    def _is_written(self, element: ShardStretch) -> bool:
        return bool(self._engine.written(element.pa, element.nbytes).all())

    def _read(self, look: Look) -> HostRead:
        return HostRead(
            action=look.action,
            tensor=look.layout.name,
            line=calling_line(),
            start_ps=look.start_ps,
            end_ps=self._engine.machine.clock.time,
        )


def _describe_elements(look: Look, those: Array, wanted: Array, first: Index, holder: ShardStretch) -> SomeElements:
    count = int(np.count_nonzero(those))
    return SomeElements(
        count=count,
        total=int(np.count_nonzero(wanted)),
        nbytes=count * look.layout.dtype.itemsize,
        index=first,
        pe=holder.pe,
        pa=holder.pa,
    )
