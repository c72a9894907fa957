"""Review of a program's use of its machine: suggested changes, evidence, and the upper bound of each gain.

The bounds are computed without a simulation. The real gain depends on the changed program.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kernbench.common.units import format_size
from kernbench.common.values import value
from kernbench.core.log import Kind
from kernbench.core.observed import Carries
from kernbench.observe.critical_path_model import PathPart
from kernbench.observe.trace_log import TraceLog
from kernbench.runtime_api.run_explanation import LaunchExplanation
from kernbench.topology import resources as of
from kernbench.topology.hbm_spec import HbmCtrlAttrs

SMALLEST_SHARE = 0.02
"""Smallest gain that is reported, as a share of the launch's time"""
_ROUND_TRIP = frozenset((PathPart.REQUEST, PathPart.ACCESS, PathPart.RESPONSE))
_BETWEEN = frozenset((PathPart.REQUEST, PathPart.RESPONSE, PathPart.NETWORK_QUEUE))


@value(kw_only=True)
class ProgramAdvice:
    """A suggested change of the program, with its evidence. The change saves at most ``share`` of the launch's time."""

    what: str
    evidence: str
    share: float


def review_program(log: TraceLog, launch: LaunchExplanation) -> tuple[ProgramAdvice, ...]:
    """Return suggested changes of a launch's kernel, the largest possible gain first."""
    review = _Review(log, launch)
    suggestions = [
        *review.tiles(),
        *review.repeats(),
        *review.distance(),
        *review.descriptors(),
        *review.slots(),
        *review.idle(),
    ]
    worthwhile = (suggestion for suggestion in suggestions if suggestion.share >= SMALLEST_SHARE)
    return tuple(sorted(worthwhile, key=lambda suggestion: -suggestion.share))


class _Review:
    """Finds suggestions for a launch in the rows and transfers of its log."""

    def __init__(self, log: TraceLog, launch: LaunchExplanation) -> None:
        self._spec = log.machine.spec
        self._graph = log.machine.graph
        self._seen = log.seen
        self._launch = launch
        columns = self._seen.columns
        self._mine = columns.launch == launch.request_id
        self._reads = np.flatnonzero(self._mine & (columns.kind == Kind.DMA_READ) & (columns.tile >= 0))
        self._parts = dict.fromkeys(PathPart, 0) | {spent.part: spent.ps for spent in launch.path.parts}

    def _share(self, ps: float) -> float:
        return ps / self._launch.path.ps

    def tiles(self) -> Iterator[ProgramAdvice]:
        """Yield advice to use more tiles in flight if streamed tiles wait for the round trip to the memory."""
        in_flight = self._spec.pe.components.pe_scheduler.attrs.tiles_in_flight
        if len(self._reads) > 2 * in_flight:
            share = self._share(sum(self._parts[part] for part in _ROUND_TRIP))
            yield ProgramAdvice(
                what=f"more tiles in flight: pe.components.pe_scheduler.attrs.tiles_in_flight={2 * in_flight}",
                evidence=f"the round trip to the memory is {share:.0%} of the critical path with {in_flight} in flight",
                share=share,
            )

    def repeats(self) -> Iterator[ProgramAdvice]:
        """Yield advice to use blocks, or resident operands, if a kernel reads tiles of products repeatedly."""
        columns, tiles = self._seen.columns, self._seen.machine.log.tiles
        reads = distinct = 0
        for parent in np.unique(columns.parent[self._reads]).tolist():
            rows = self._reads[columns.parent[self._reads] == parent]
            indices = {tiles[tile] for tile in columns.tile[rows].tolist()}
            if all(len(index) == 3 for index in indices):
                m, n, k = (len({index[axis] for index in indices}) for axis in range(3))
                reads += len(rows)
                distinct += min(len(rows), m * k + k * n)
        memory_bounds = [bound.ps for bound in self._launch.roofline.bounds if bound.resource in (of.HBM, of.SRAM)]
        if reads > distinct > 0:
            yield ProgramAdvice(
                what='products by blocks: tl.composite(..., block="auto"), or an operand that is loaded once',
                evidence=f"{reads:,} tiles are read where {distinct:,} would suffice",
                share=self._share(max(memory_bounds, default=0) * (1 - distinct / reads)),
            )

    def distance(self) -> Iterator[ProgramAdvice]:
        """Yield advice to place PEs beside their data if bytes come from slices of other PEs."""
        observed, transfers = self._seen, self._seen.transfers
        asks = observed.asks[np.isin(transfers.of[observed.asks], np.flatnonzero(self._mine))]
        near = far = 0
        for ask in asks.tolist():
            access = observed.tables.transfer(ask)
            memory = self._graph.node(observed.columns.parts[access.dst])
            asker = self._graph.node(observed.columns.parts[access.src])
            if isinstance(memory.attrs, HbmCtrlAttrs) and asker.pe is not None:
                answer = observed.answer(ask) if access.what == Carries.REQUEST else None
                nbytes = access.nbytes if answer is None else answer.nbytes
                local = (memory.sip, memory.cube) == (asker.sip, asker.cube)
                near, far = (near + nbytes, far) if local else (near, far + nbytes)
        if far:
            ps = sum(
                share.ps
                for share in self._launch.shares
                if share.part in _BETWEEN and share.resources not in ((of.NOC,), ("crossbar overhead",), ())
            )
            yield ProgramAdvice(
                what="work beside its data",
                evidence=f"{far / (near + far):.0%} of {format_size(near + far)} come from, or go to, other cubes",
                share=self._share(ps),
            )

    def descriptors(self) -> Iterator[ProgramAdvice]:
        """Yield advice to use fewer, larger descriptors if the set-up of descriptors delays work."""
        path_ps = sum(share.ps for share in self._launch.shares if share.resources == (of.DMA_SETUP,))
        bounds = {bound.resource: bound for bound in self._launch.roofline.bounds}
        bound = bounds.get(of.DMA_SETUP)
        if bound is not None and bound.amount > 1:
            yield ProgramAdvice(
                what="fewer, larger descriptors",
                evidence=f"{bound.where} sets up {bound.amount:,} {bound.unit}",
                share=self._share(max(path_ps, bound.ps) * (1 - 1 / bound.amount)),
            )

    def slots(self) -> Iterator[ProgramAdvice]:
        """Yield advice to add queue slots if senders wait for a free slot."""
        waits = [hop for hop in self._launch.path.hops if hop.waited_for == "slot"]
        if waits:
            yield ProgramAdvice(
                what="more slots a queue (n_slots in ccl.yaml, or of the install)",
                evidence=f"senders waited {len(waits):,} times for a slot",
                share=min(1.0, self._share(sum(hop.ps for hop in waits))),
            )

    def idle(self) -> Iterator[ProgramAdvice]:
        """Yield advice to use more PEs if some PEs of the active cubes are idle."""
        parts = np.unique(self._seen.columns.part[self._mine & (self._seen.columns.kind == Kind.LAUNCH)]).tolist()
        nodes = [self._graph.node(self._seen.columns.parts[part]) for part in parts]
        n_pes = len({node.cube_coord for node in nodes}) * self._spec.pes_per_cube
        if nodes and len(nodes) < n_pes:
            kernels = sum(step.ps for step in self._launch.path.steps if step.pe is not None)
            yield ProgramAdvice(
                what="more PEs",
                evidence=f"{len(nodes)} of {n_pes} PEs of its cubes work",
                share=self._share(kernels * (1 - len(nodes) / n_pes)),
            )
