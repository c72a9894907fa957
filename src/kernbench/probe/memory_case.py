"""The case ``memory``: patterns of accesses to one slice with banks, alone, without a machine around it.

A source always has a next access, or sends accesses at random times at a share of the bandwidth that it had then. The
results are, by pattern, the part of the peak bandwidth, the row hits, and the mean latency over load. Beside them stand
the figures of a cycle-accurate simulator of DRAM, for the patterns that it has run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from itertools import islice
from math import prod

from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.components.hbm.banks import BankedMemory, Stretch
from kernbench.components.hbm.controller import Request, Slice
from kernbench.core.clock import Clock
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import HBM3, PRESETS, AddressMapping, HbmSpec, HbmTiming, marked

PATTERNS = (
    *("seq", "seq_write"),
    *(f"random_{size}" for size in ("32B", "64B", "256B", "1KB", "4KB")),
    *("random_64B_5050", "random_1KB_5050"),
    *(f"stride_{step}B_64B" for step in (128, 256, 512, 1024, 4096, 16384)),
    "stride_1024B_64B_5050",
    *(f"seq_copy_{size}_alt{off}" for size in ("64B", "1KB", "4KB") for off in ("", "_bankoff")),
)
"""``seq`` and ``seq_write``: sequential reads, writes. ``random_SIZE``: accesses of SIZE at random places.
``stride_STEP_SIZE``: accesses of SIZE, STEP apart. With ``_5050`` half of them are writes.
``seq_copy_SIZE_alt``: reads of SIZE in turn with writes of as many bytes far away; with ``_bankoff`` half of all banks
further.
"""
SMALL = 64
"""Bytes of an access of a sequential pattern"""

AccessStep = tuple[Access, bool]
"""An access, and whether it writes"""


def accesses(pattern: str, room: int, bank_off: int, seed: int) -> Iterator[AccessStep]:
    """Return the accesses of a pattern in ``room`` bytes of memory, without end."""
    name, *rest = pattern.split("_")
    mixed = rest[-1:] == ["5050"]
    if name == "random":
        return _random(_bytes(rest[0]), room, mixed, random.Random(seed))
    if name == "stride":
        return _stride(_bytes(rest[0]), _bytes(rest[1]), room, mixed, random.Random(seed))
    if rest[:1] == ["copy"]:
        return _copy(_bytes(rest[1]), room, bank_off if rest[-1] == "bankoff" else 0)
    return _sequential(room, write=rest == ["write"])


def half_of_banks(banks: HbmTiming, num_pcs: int, mapping: AddressMapping) -> int:
    """Return the bytes after which half of the banks have been passed."""
    sizes = {"pc": num_pcs, "stack": banks.stacks, "group": banks.groups, "bank": banks.banks, "column": banks.columns}
    names = [entry.field for entry in mapping]
    last = max(names.index(name) for name in ("pc", "stack", "group", "bank"))
    return prod(entry.values or sizes[entry.field] for entry in mapping[: last + 1]) // 2 * banks.burst_bytes


def _bytes(text: str) -> int:
    return int(text[:-2]) * 1024 if text.endswith("KB") else int(text[:-1])


def _sequential(room: int, *, write: bool) -> Iterator[AccessStep]:
    while True:
        for pa in range(0, room - SMALL + 1, SMALL):
            yield Access(pa, SMALL), write


def _random(size: int, room: int, mixed: bool, rng: random.Random) -> Iterator[AccessStep]:
    while True:
        yield Access(rng.randrange(room // size) * size, size), mixed and rng.random() < 0.5


def _stride(step: int, size: int, room: int, mixed: bool, rng: random.Random) -> Iterator[AccessStep]:
    while True:
        for pa in range(0, room - size + 1, step):
            yield Access(pa, size), mixed and rng.random() < 0.5


def _copy(size: int, room: int, bank_off: int) -> Iterator[AccessStep]:
    half = room // 2
    while True:
        for pa in range(0, half - bank_off - size + 1, size):
            yield Access(pa, size), False
            yield Access(pa + half + bank_off, size), True


NAME = "memory"
DESCRIPTION = "patterns of accesses to one HBM slice, beside a cycle-accurate simulator's figures"
BURSTS = 8000
REQUESTERS = (1, 2, 4, 8)
SHARED = ("seq", "random_64B", "random_1KB")
"""Patterns of which several requesters run one each, and whose latency is measured over load"""
LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
ROOM = 512 << 20
"""Bytes of a slice that patterns go through"""
COMPARED = ("MOP4CLXOR", "RoBaRaCoCh")
"""Mappings that the reference has figures for"""
REFERENCE = "memory_reference.json"


@value
class SliceFigures:
    """Percent of peak, and percent of bursts whose row was open."""

    efficiency_pct: float
    row_hit_pct: float


@value
class PatternRow:
    """The figures of a pattern; ``reference``: those of the cycle-accurate simulator, if it has them."""

    pattern: str
    requesters: int
    gbs: float
    found: SliceFigures
    reference: SliceFigures | None

    @property
    def error(self) -> float | None:
        """Points of peak beside the reference."""
        return None if self.reference is None else self.found.efficiency_pct - self.reference.efficiency_pct


@value
class Latency:
    """Mean time from an access to its last byte on a bus, at a load: percent of what the pattern got at saturation."""

    pattern: str
    load_pct: float
    mean_ns: float


@value
class SliceReport:
    """A slice and its figures."""

    timing: str
    assumed: bool
    mapping: str
    num_pcs: int
    peak_gbs: float
    rows: tuple[PatternRow, ...]
    latencies: tuple[Latency, ...]

    @property
    def memory(self) -> str:
        """The timing, with a mark where it is assumed."""
        return marked(self.timing, assumed=self.assumed)

    @property
    def errors(self) -> tuple[float, ...]:
        """Points beside the reference, of all that have one."""
        return tuple(abs(row.error) for row in self.rows if row.error is not None)


@value
class SliceUnderTest:
    """A slice to be probed, by the names of its timing and mapping."""

    timing: str
    assumed: bool
    mapping: str
    num_pcs: int
    banks: HbmTiming
    fields: AddressMapping
    queue: int
    quantum: int
    room: int

    @property
    def memory(self) -> str:
        """The timing, with a mark where it is assumed."""
        return marked(self.timing, assumed=self.assumed)

    def make(self) -> BankedMemory:
        """Make such a slice, idle."""
        return BankedMemory(self.banks, self.num_pcs, self.fields, self.queue, self.quantum)

    @property
    def peak_gbs(self) -> float:
        """All buses together."""
        return self.num_pcs * self.banks.pc_gbs

    def steps(self, pattern: str, requester: int = 0) -> Iterator[tuple[Access, bool]]:
        """Yield the accesses of a requester, each with a part of the memory and random numbers of its own."""
        room = self.room // max(REQUESTERS)
        if not requester:
            room = self.room
        off = half_of_banks(self.banks, self.num_pcs, self.fields)
        # Each begins an eighth of the banks further: none follows another from bank to bank.
        start = requester * (room + off // 4)
        for access, write in accesses(pattern, room, off, requester + 1):
            yield Access((start + access.pa) % self.room, access.row_bytes), write


def slices_of(hbm: HbmSpec) -> tuple[SliceUnderTest, ...]:
    """Return the slice of a machine, and with the reference's mappings too, unless it has a mapping of its choice.

    Under ``timing: ideal``, which has no banks: HBM3's channel with those mappings.
    """
    compared = [
        hbm.model_copy(update={"mapping": name, "burst_bytes": None, "channel_hash": None}) for name in COMPARED
    ]
    if hbm.banks is None:
        compared = [each.model_copy(update={"timing": "hbm3", "num_pcs": 2}) for each in compared]
        return tuple(_slice_of(each, HBM3) for each in compared)
    found = [hbm, *compared] if hbm.interleaves else [hbm]
    return tuple(_slice_of(each, hbm.banks) for each in found)


def _slice_of(hbm: HbmSpec, banks: HbmTiming) -> SliceUnderTest:
    mapping = hbm.mapping or "interleave"
    return SliceUnderTest(
        timing=hbm.timing_name,
        assumed=hbm.is_assumed,
        mapping=mapping if isinstance(mapping, str) else "fields",
        num_pcs=hbm.num_pcs,
        banks=banks,
        fields=hbm.fields(banks),
        queue=hbm.queue,
        quantum=hbm.quantum_bytes,
        room=min(ROOM, hbm.bytes_per_slice),
    )


def probe_slice(slice_: SliceUnderTest, patterns: Sequence[str] = PATTERNS, bursts: int = BURSTS) -> SliceReport:
    """Probe all patterns with one requester, some with more, and those over load."""
    rows = [saturate(slice_, pattern, 1, bursts) for pattern in patterns]
    shared = [pattern for pattern in patterns if pattern in SHARED]
    rows += [saturate(slice_, pattern, n, bursts) for n in REQUESTERS[1:] for pattern in shared]
    latencies = [
        Latency(row.pattern, 100 * load, mean_latency_ns(slice_, row.pattern, load * row.gbs, bursts))
        for row in rows
        if row.pattern in shared and row.requesters == 1
        for load in LOADS
    ]
    return SliceReport(
        timing=slice_.timing,
        assumed=slice_.assumed,
        mapping=slice_.mapping,
        num_pcs=slice_.num_pcs,
        peak_gbs=slice_.peak_gbs,
        rows=tuple(rows),
        latencies=tuple(latencies),
    )


class _Served(Request):
    """An access that remembers when it came and ended."""

    __slots__ = ("asked_ps", "ended_ps")

    def __init__(self, requester: int, access: Access, write: bool, asked_ps: int) -> None:
        super().__init__(requester, access, write, asked_ps)
        self.asked_ps = asked_ps
        self.ended_ps = 0

    def begin(self, first: int, stretch: Stretch) -> None:
        self.ended_ps = stretch.last_ps

    def cut(self, end: int) -> None:
        """Do nothing: a later part tells when the access ends."""


def saturate(slice_: SliceUnderTest, pattern: str, requesters: int, bursts: int) -> PatternRow:
    """Measure a pattern with requesters that always have a next access, of ``bursts`` in all."""
    memory, clock = slice_.make(), Clock()
    turns = Slice(memory, clock)
    sources = [slice_.steps(pattern, requester) for requester in range(requesters)]
    left = bursts * slice_.banks.burst_bytes
    while left > 0:
        for requester, source in enumerate(sources):
            access, write = next(source)
            left -= access.nbytes
            turns.submit(_Served(requester, access, write, 0))
    clock.advance()
    counts, end_ps = memory.counts, memory.banks.end_ps
    gbs = counts.bursts * slice_.banks.burst_bytes / ps_to_ns(end_ps)
    found = SliceFigures(100 * gbs / slice_.peak_gbs, 100 * counts.hits / counts.bursts)
    return PatternRow(pattern, requesters, gbs, found, _reference(slice_, pattern) if requesters == 1 else None)


def mean_latency_ns(slice_: SliceUnderTest, pattern: str, gbs: float, bursts: int) -> float:
    """Measure the mean latency when four requesters in turn ask at random times, ``gbs`` in the mean."""
    memory, clock, rng = slice_.make(), Clock(), random.Random(0)
    turns = Slice(memory, clock)
    steps = list(islice(slice_.steps(pattern), bursts))
    asked, when, left = [], 0.0, bursts * slice_.banks.burst_bytes
    for number, (access, write) in enumerate(steps):
        when += rng.expovariate(gbs / access.nbytes) * 1000
        request = _Served(number % 4, access, write, round(when))
        asked.append(request)
        clock.call_at(request.asked_ps, turns.submit, request)
        left -= access.nbytes
        if left <= 0:
            break
    clock.advance()
    return ps_to_ns(sum(request.ended_ps - request.asked_ps for request in asked)) / len(asked)


@cache
def _reference_rows() -> tuple[str, dict[tuple[str, str], SliceFigures]]:
    data = json.loads(resources.files("kernbench.probe").joinpath(REFERENCE).read_text(encoding="utf-8"))
    rows = {
        (row["mapping"], row["pattern"]): SliceFigures(row["efficiency_pct"], row["row_hit_pct"])
        for row in data["rows"]
    }
    return data["memory"], rows


def _reference(slice_: SliceUnderTest, pattern: str) -> SliceFigures | None:
    """Return the simulator's figures, which are of one channel of a certain timing."""
    memory, rows = _reference_rows()
    alike = slice_.banks == PRESETS[memory].timing and slice_.num_pcs == 2 and slice_.queue == 64
    return rows.get((slice_.mapping, pattern)) if alike else None
