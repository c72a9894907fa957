"""The case ``memory``: access patterns on one slice with banks, without a machine around it.

A source either always has a next access, or sends accesses at random times (Poisson) at a rate. The results per pattern
are the share of peak bandwidth, the row hits, and the latency over load. The reference is a cycle-accurate DRAM
simulator: its figures are shown beside the results, for the patterns and rates that it ran.

Latency is the time from the arrival of an access until its last byte has crossed a bus, plus CL.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import count
from math import prod

from kernbench.common.errors import InputError
from kernbench.common.units import format_size, ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.components.hbm.banks import BankedMemory, Grant, Histories
from kernbench.components.hbm.controller import Request, SliceArbiter
from kernbench.components.hbm.layout import Layout
from kernbench.core.clock import Clock
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import (
    HBM3,
    PRESETS,
    AddressMapping,
    HbmSpec,
    HbmTiming,
    Refresh,
    interleave,
    mark_assumed,
)

PATTERNS = (
    *("seq", "seq_write"),
    *(f"random_{size}" for size in ("32B", "64B", "128B", "256B", "1KB", "4KB")),
    *("random_64B_5050", "random_256B_6733", "random_1KB_5050"),
    *(f"stride_{step}B_64B" for step in (128, 256, 512, 1024, 4096, 16384)),
    *("stride_1024B_64B_5050", "stride_3072B_512B"),
    *(f"seq_copy_{size}_alt{off}" for size in ("64B", "1KB", "4KB") for off in ("", "_bankoff")),
    *("streams_3_256B_16MB", "streams_4_1KB_16781568B_2write", "one_group_256B"),
)
"""The patterns of accesses:

- ``seq``, ``seq_write``: sequential reads, sequential writes
- ``random_SIZE``: accesses of SIZE at random addresses
- ``stride_STEP_SIZE``: accesses of SIZE, STEP apart
- ``_5050``, ``_6733`` after these: the percentages of reads and of writes
- ``seq_copy_SIZE_alt``: a read of SIZE, then a write of SIZE far away, alternately; ``_bankoff`` moves the writes by
  half of all banks
- ``streams_N_SIZE_GAP``: N sequential streams that begin GAP apart, round-robin with SIZE of each; ``_Kwrite`` makes
  the last K streams write
- ``one_group_SIZE``: sequential, but only the accesses whose first burst is in bank group 1
"""
SMALL = 64
"""Bytes of an access of a sequential pattern"""
ONE_GROUP = "one_group"
GROUP = 1
"""The bank group of ``one_group_SIZE``"""

AccessStep = tuple[Access, bool]
"""An access, and True for a write"""


def accesses(pattern: str, room: int, bank_off: int, seed: int) -> Iterator[AccessStep]:
    """Return an endless iterator over the accesses of a pattern in ``room`` bytes of memory.

    The iterator is empty if no access fits. For ``one_group_SIZE`` it yields the accesses in all groups.
    """
    name, *options = pattern.split("_")
    if name == "random":
        return _random(_bytes(options[0]), room, _parse_writes(options[1:]), random.Random(seed))
    if name == "stride":
        return _stride(_bytes(options[0]), _bytes(options[1]), room, _parse_writes(options[2:]), random.Random(seed))
    if name == "streams":
        writers = int(options[3].removesuffix("write")) if options[3:] else 0
        return _streams(int(options[0]), _bytes(options[1]), _bytes(options[2]), room, writers)
    if name == "one":
        return _sequential(_bytes(options[1]), room, write=False)
    if options[:1] == ["copy"]:
        return _copy(_bytes(options[1]), room, bank_off if options[-1] == "bankoff" else 0)
    return _sequential(SMALL, room, write=options == ["write"])


def half_of_banks(banks: HbmTiming, num_pcs: int, mapping: AddressMapping) -> int:
    """Return the number of consecutive bytes that pass half of the banks."""
    sizes = {"pc": num_pcs, "stack": banks.stacks, "group": banks.groups, "bank": banks.banks, "column": banks.columns}
    names = [entry.field for entry in mapping]
    last = max(names.index(name) for name in ("pc", "stack", "group", "bank"))
    return prod(entry.values or sizes[entry.field] for entry in mapping[: last + 1]) // 2 * banks.burst_bytes


def _bytes(text: str) -> int:
    for unit, factor in (("KB", 1 << 10), ("MB", 1 << 20)):
        if text.endswith(unit):
            return int(text[:-2]) * factor
    return int(text[:-1])


def _parse_writes(options: Sequence[str]) -> float:
    """Return the share of writes from the digits for reads and writes, two each; 0 without digits."""
    return int(options[0][2:]) / 100 if options else 0.0


def _sequential(size: int, room: int, *, write: bool) -> Iterator[AccessStep]:
    places = range(0, room - size + 1, size)
    while places:
        for pa in places:
            yield Access(pa, size), write


def _random(size: int, room: int, written: float, rng: random.Random) -> Iterator[AccessStep]:
    while size <= room:
        yield Access(rng.randrange(room // size) * size, size), written > 0 and rng.random() < written


def _stride(step: int, size: int, room: int, written: float, rng: random.Random) -> Iterator[AccessStep]:
    places = range(0, room - size + 1, step)
    while places:
        for pa in places:
            yield Access(pa, size), written > 0 and rng.random() < written


def _streams(n: int, size: int, gap: int, room: int, writers: int) -> Iterator[AccessStep]:
    if room < size:
        return
    for at in count(0, size):
        for stream in range(n):
            yield Access((stream * gap + at) % (room - size + SMALL), size), stream >= n - writers


def _copy(size: int, room: int, bank_off: int) -> Iterator[AccessStep]:
    half = room // 2
    places = range(0, half - bank_off - size + 1, size)
    while places:
        for pa in places:
            yield Access(pa, size), False
            yield Access(pa + half + bank_off, size), True


NAME = "memory"
DESCRIPTION = "patterns of accesses to one HBM slice, beside a cycle-accurate simulator's figures"
BURSTS = 8000
PERIODS = 2
"""The least length of a load at random times, in periods of all-bank refresh"""
REQUESTERS = (1, 2, 4, 8)
SHARED = ("seq", "random_64B", "random_1KB")
"""Patterns run by several requesters at once, and measured for latency over load"""
LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
LATENCY_BURSTS = 16_384
"""Bursts of a load at random times that is compared with the reference, the same number as there"""
ROOM = 512 << 20
"""Bytes of a slice that patterns use"""
COMPARED = ("MOP4CLXOR", "RoBaRaCoCh")
"""Mappings with figures in the reference, beside ``interleave``"""
REFERENCE = "memory_reference.json"


@value
class SliceFigures:
    """The achieved percentage of peak bandwidth, and the percentage of bursts whose row was open."""

    efficiency_pct: float
    row_hit_pct: float


@value
class PatternRow:
    """The figures of a pattern; ``reference`` has the figures of the reference simulator, if it ran the pattern."""

    pattern: str
    requesters: int
    gbs: float
    figures: SliceFigures
    reference: SliceFigures | None

    @property
    def error(self) -> float | None:
        """The difference from the reference simulator in percentage points of peak bandwidth; None without one."""
        return None if self.reference is None else self.figures.efficiency_pct - self.reference.efficiency_pct


@value
class AbsentPattern:
    """A pattern that a slice cannot run with ``requesters`` requesters, and the reason."""

    pattern: str
    requesters: int
    why: str


@value
class LatencyFigures:
    """Mean, median and 99th percentile of the latencies of all accesses."""

    mean_ns: float
    p50_ns: float
    p99_ns: float


@value
class Latency:
    """The latencies of a pattern at ``gbs``.

    ``load_pct`` is the load in percent of the rate at saturation. ``reference`` has the latencies of the reference
    simulator, if it ran this load.
    """

    pattern: str
    gbs: float
    load_pct: float
    figures: LatencyFigures
    reference: LatencyFigures | None = None

    @property
    def error_pct(self) -> float | None:
        """The difference of the mean latency from the reference simulator's, in percent of the latter."""
        return None if self.reference is None else 100 * (self.figures.mean_ns / self.reference.mean_ns - 1)


@value
class SliceReport:
    """A slice and its figures.

    ``compared`` has the latencies at the loads of the reference simulator, ``absent`` the patterns without a row in
    ``rows``.
    """

    timing: str
    assumed: bool
    mapping: str
    num_pcs: int
    refresh: Refresh
    peak_gbs: float
    rows: tuple[PatternRow, ...]
    latencies: tuple[Latency, ...]
    compared: tuple[Latency, ...]
    absent: tuple[AbsentPattern, ...] = ()

    @property
    def memory(self) -> str:
        """The name of the timing, marked if it is assumed."""
        return mark_assumed(self.timing, assumed=self.assumed)

    @property
    def errors(self) -> tuple[float, ...]:
        """The absolute ``error`` of each row that has a reference, in percentage points of peak bandwidth."""
        return tuple(abs(row.error) for row in self.rows if row.error is not None)


@value
class SliceUnderTest:
    """A slice to be probed, with the names of its timing and mapping."""

    timing: str
    assumed: bool
    mapping: str
    num_pcs: int
    banks: HbmTiming
    refresh: Refresh
    fields: AddressMapping
    queue: int
    quantum: int
    room: int

    @property
    def memory(self) -> str:
        """The name of the timing, marked if it is assumed."""
        return mark_assumed(self.timing, assumed=self.assumed)

    def make(self) -> BankedMemory:
        """Return an idle memory with the parameters of this slice."""
        return BankedMemory(Histories(self.banks, self.num_pcs, self.fields, self.queue, self.refresh), self.quantum)

    @property
    def is_compared(self) -> bool:
        """True if the figures of the reference simulator are for a slice like this one."""
        if self.mapping == "interleave" and self.fields != interleave(8, xor=True):
            return False
        return self.banks == PRESETS[_reference().memory].timing and self.num_pcs == 2 and self.queue == 64

    @property
    def peak_gbs(self) -> float:
        """The bandwidth of all buses together, in GB/s."""
        return self.num_pcs * self.banks.pc_gbs

    def steps(self, pattern: str, requester: int = 0) -> Iterator[AccessStep]:
        """Yield the accesses of a requester, which has a separate share of the memory and separate random numbers.

        Yield nothing if no access fits in the share, or if no access is in the group of ``one_group_SIZE``.
        """
        room = self.room if not requester else self.room // max(REQUESTERS)
        off = half_of_banks(self.banks, self.num_pcs, self.fields)
        # Requesters begin an eighth of the banks apart, so that none follows another from bank to bank.
        start = requester * (room + off // 4)
        layout = Layout(self.banks, self.num_pcs, self.fields) if pattern.startswith(ONE_GROUP) else None
        n_passed_over = 0
        for access, write in accesses(pattern, room, off, requester + 1):
            pa = (start + access.pa) % self.room
            if layout is None or self._group_of(layout, pa) == GROUP:
                n_passed_over = 0
                yield Access(pa, access.row_bytes), write
            else:
                n_passed_over += 1
                if n_passed_over > room // access.row_bytes:  # more than a period of the pattern
                    return

    def why_absent(self, pattern: str, requesters: int = 1) -> str:
        """Return the reason why ``requesters`` requesters cannot run a pattern; empty if they can."""
        if all(next(self.steps(pattern, requester), None) for requester in range(requesters)):
            return ""
        if pattern.startswith(ONE_GROUP) and next(accesses(pattern, self.room, 0, 0), None):
            return f"with this mapping none of its accesses begins in bank group {GROUP}"
        among = f", of which each of {requesters} requesters has 1/{max(REQUESTERS)}" if requesters > 1 else ""
        return f"it has no room in {format_size(self.room)} of memory{among}"

    def _group_of(self, layout: Layout, pa: int) -> int:
        """Return the bank group of an address."""
        return layout.bank_of(pa) // self.banks.banks % self.banks.groups


def slices_of(hbm: HbmSpec) -> tuple[SliceUnderTest, ...]:
    """Return the slice of a machine, followed by slices with the mappings that the reference simulator ran.

    If the mapping is neither ``interleave`` nor ``hash``, only the machine's slice is returned. A machine with
    ``timing: ideal`` has no banks: its slices have the channel of HBM3, and the mappings and the refresh of the
    reference.
    """
    compared = [
        hbm.model_copy(update={"mapping": name, "burst_bytes": None, "channel_hash": None}) for name in COMPARED
    ]
    if hbm.banks is None:
        compared = [
            spec.model_copy(update={"timing": "hbm3", "num_pcs": 2, "refresh": "all-bank"}) for spec in compared
        ]
        return tuple(_slice_of(spec, HBM3) for spec in compared)
    specs = [hbm, *compared] if hbm.interleaves else [hbm]
    return tuple(_slice_of(spec, hbm.banks) for spec in specs)


def _slice_of(hbm: HbmSpec, banks: HbmTiming) -> SliceUnderTest:
    mapping = hbm.mapping or "interleave"
    return SliceUnderTest(
        timing=hbm.timing_name,
        assumed=hbm.is_assumed,
        mapping=mapping if isinstance(mapping, str) else "fields",
        num_pcs=hbm.num_pcs,
        banks=banks,
        refresh=hbm.refresh_mode,
        fields=hbm.fields(banks),
        queue=hbm.queue,
        quantum=hbm.quantum_bytes,
        room=min(ROOM, hbm.bytes_per_slice),
    )


def probe_slice(slice_: SliceUnderTest, patterns: Sequence[str] = PATTERNS, bursts: int = BURSTS) -> SliceReport:
    """Probe the patterns with one requester, some patterns also with several requesters, and some at several loads.

    Patterns that the slice cannot run are listed as absent.
    """
    runs = [(pattern, 1) for pattern in patterns]
    runs += [(pattern, requesters) for requesters in REQUESTERS[1:] for pattern in patterns if pattern in SHARED]
    reasons = {run: slice_.why_absent(*run) for run in runs}
    rows = [saturate(slice_, *run, bursts) for run, why in reasons.items() if not why]
    most_gbs = {row.pattern: row.gbs for row in rows if row.requesters == 1}
    shared = [pattern for pattern in most_gbs if pattern in SHARED]
    latencies = [
        Latency(
            pattern, load * most_gbs[pattern], 100 * load, latency(slice_, pattern, load * most_gbs[pattern], bursts)
        )
        for pattern in shared
        for load in LOADS
    ]
    compared = [
        Latency(
            stored.pattern,
            stored.gbs,
            100 * stored.gbs / most_gbs[stored.pattern],
            _figures(slice_, _open_load(slice_, stored.pattern, stored.gbs, LATENCY_BURSTS)),
            stored.figures,
        )
        for stored in _reference().latencies
        if stored.mapping == slice_.mapping and stored.pattern in most_gbs and slice_.is_compared
    ]
    return SliceReport(
        timing=slice_.timing,
        assumed=slice_.assumed,
        mapping=slice_.mapping,
        num_pcs=slice_.num_pcs,
        refresh=slice_.refresh,
        peak_gbs=slice_.peak_gbs,
        rows=tuple(rows),
        latencies=tuple(latencies),
        compared=tuple(compared),
        absent=tuple(AbsentPattern(*run, why) for run, why in reasons.items() if why),
    )


class _Served(Request):
    """An access that records the times of its arrival and its end."""

    __slots__ = ("asked_ps", "ended_ps")

    def __init__(self, requester: int, access: Access, write: bool, asked_ps: int) -> None:
        super().__init__(requester, access, write, asked_ps)
        self.asked_ps = asked_ps
        self.ended_ps = 0

    def begin(self, first: int, grant: Grant) -> None:
        self.ended_ps = grant.last_ps

    def cut(self, end: int) -> None:
        """Do nothing: a later part of the access sets its end."""


def saturate(slice_: SliceUnderTest, pattern: str, requesters: int, bursts: int) -> PatternRow:
    """Measure a pattern for ``bursts`` in total, with requesters that always have a next access.

    The measurement may end before a refresh. The rate is therefore computed from bank time, lengthened by the long-term
    share of refresh. Raises InputError if the slice cannot run the pattern.
    """
    why = slice_.why_absent(pattern, requesters)
    if why:
        raise InputError(f"{pattern}: {why}")
    memory, clock = slice_.make(), Clock()
    arbiter = SliceArbiter(memory, clock)
    sources = [slice_.steps(pattern, requester) for requester in range(requesters)]
    left = bursts * slice_.banks.burst_bytes
    while left > 0:
        for requester, source in enumerate(sources):
            access, write = next(source)
            left -= access.nbytes
            arbiter.submit(_Served(requester, access, write, 0))
    clock.advance()
    done, of_time = memory.done, memory.clock
    gbs = memory.moved_bursts * slice_.banks.burst_bytes / ps_to_ns(of_time.into(memory.end_ps)) * of_time.used
    figures = SliceFigures(100 * gbs / slice_.peak_gbs, 100 * (done[0] - done[1]) / done[0])
    is_known = requesters == 1 and slice_.is_compared
    return PatternRow(
        pattern, requesters, gbs, figures, _reference().rows.get((slice_.mapping, pattern)) if is_known else None
    )


def latency(slice_: SliceUnderTest, pattern: str, gbs: float, bursts: int) -> LatencyFigures:
    """Measure the latencies of a requester that sends accesses at random times, at a mean rate of ``gbs``.

    The load has ``bursts`` bursts or more.
    """
    period_ns = slice_.banks.refi_ns if slice_.refresh == "all-bank" else 0.0
    periods = round(PERIODS * period_ns * gbs / slice_.banks.burst_bytes)
    # Begin after half a refresh period: outages then have their long-term share of the time.
    return _figures(slice_, _open_load(slice_, pattern, gbs, max(bursts, periods), period_ns / 2))


def _open_load(slice_: SliceUnderTest, pattern: str, gbs: float, bursts: int, since_ns: float = 0.0) -> list[_Served]:
    """Serve the accesses of one requester, which arrive at random times, in order."""
    clock, rng = Clock(), random.Random(0)
    arbiter = SliceArbiter(slice_.make(), clock)
    requests: list[_Served] = []
    when, left = since_ns, bursts * slice_.banks.burst_bytes
    for access, write in slice_.steps(pattern):
        when += rng.expovariate(gbs / access.nbytes)
        requests.append(_Served(0, access, write, ns_to_ps(when)))
        clock.call_at(requests[-1].asked_ps, arbiter.submit, requests[-1])
        left -= access.nbytes
        if left <= 0:
            break
    clock.advance()
    return requests


def _figures(slice_: SliceUnderTest, requests: Sequence[_Served]) -> LatencyFigures:
    latencies_ns = sorted(ps_to_ns(request.ended_ps - request.asked_ps) + slice_.banks.cl_ns for request in requests)
    return LatencyFigures(
        sum(latencies_ns) / len(latencies_ns),
        latencies_ns[len(latencies_ns) // 2],
        latencies_ns[len(latencies_ns) * 99 // 100],
    )


@value
class _ReferenceLatency:
    """The latencies of a pattern at ``gbs`` in the reference simulator."""

    mapping: str
    pattern: str
    gbs: float
    figures: LatencyFigures


@value
class _Reference:
    """The figures of the reference simulator for one channel of the timing ``memory``.

    ``rows``: figures by mapping and pattern. ``latencies``: latencies over load.
    """

    memory: str
    rows: Mapping[tuple[str, str], SliceFigures]
    latencies: tuple[_ReferenceLatency, ...]


@cache
def _reference() -> _Reference:
    data = json.loads(resources.files("kernbench.probe").joinpath(REFERENCE).read_text(encoding="utf-8"))
    rows = {
        (row["mapping"], row["pattern"]): SliceFigures(row["efficiency_pct"], row["row_hit_pct"])
        for row in data["rows"]
    }
    latencies = tuple(
        _ReferenceLatency(
            row["mapping"],
            row["pattern"],
            row["load_gbs"],
            LatencyFigures(row["mean_ns"], row["p50_ns"], row["p99_ns"]),
        )
        for row in data["latency"]
    )
    return _Reference(data["memory"], rows, latencies)
