"""Checks that every implementation of a component must pass: they run traffic on a small machine with the component.

The file begins with the small machine and the programs that use each of its component types; the checks follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import product
from math import ceil
from typing import Any

import numpy as np

from kernbench.common.errors import (
    ConfigError,
    InputError,
    KernbenchError,
    SimulationDeadlock,
    UnknownNameError,
    text_of,
)
from kernbench.common.units import PS_PER_NS, format_size, ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.components.memory import Memory
from kernbench.core.clock import NEVER
from kernbench.di.part import CUBE_KINDS, KINDS, PE_KINDS, SIP_KINDS, SYSTEM_KINDS, Part, PartUse, called_at
from kernbench.di.registry import REGISTRY
from kernbench.engine.engine import GraphEngine
from kernbench.engine.machine import Component, Machine
from kernbench.engine.part_check import ask_energy
from kernbench.engine.requests import Limits
from kernbench.messages.requests import HostMsg, MemoryReadMsg, MemoryWriteMsg, PeDmaMsg
from kernbench.observe.statistics import link_traffic
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.area import measure_area
from kernbench.topology.builder import Topology, resolve_topology
from kernbench.topology.graph import Node
from kernbench.transport import RateStretch, Route, Transfer, VaryingRate

SMALL_MACHINE = (
    "sip.cube_mesh={w: 2, h: 1}",
    "cube.noc.w=2",
    "cube.noc.h=2",
    "cube.pe_layout={pe_per_corner: 1, corners: [NW, SE]}",
    "cube.hbm.slices=2",
    "cube.hbm.refresh=spread",
)
"""The default machine, with SIPs of two cubes of two PEs, and with latencies independent of the start time"""
EVERYWHERE = DPPolicy("row_wise", "row_wise")


def run_all_programs(torch: RuntimeContext[Any]) -> Iterator[str]:
    """Run all programs, one after another; yield the errors in their results."""
    for program in (copy_from_host, run_kernels, run_collective, access_raw, use_extra_memories):
        yield from program(torch)


def copy_from_host(torch: RuntimeContext[Any]) -> Iterator[str]:
    """Copy in both directions to all PEs, and let the device fill tensors."""
    values = np.arange(4 * 300, dtype=np.float32).reshape(4, 300)
    x = torch.tensor(values, dp=EVERYWHERE, name="x")
    filled = torch.full((4, 700), 1.0, dp=EVERYWHERE)
    yield from _find_difference("bytes that were copied to HBM and back", x.numpy(), values)
    yield from _find_difference("bytes that the device has filled", filled.numpy(), np.ones((4, 700)))


def multiply(x_ptr: int, w_ptr: int, streamed_ptr: int, staged_ptr: int, n: int, *, tl: Any) -> None:
    """Multiply matrices of several tiles, once streamed and once in TCM with MATH on the product."""
    tl.composite("gemm", tl.ref(x_ptr, (n, n), "f32"), tl.ref(w_ptr, (n, n), "f32"), streamed_ptr, out_dtype="f32")
    a, b = tl.load(x_ptr, (n, n), "f32"), tl.load(w_ptr, (n, n), "f32")
    tl.barrier()
    tl.store(staged_ptr, tl.dot(a, b, out_dtype="f32") * 2 + 1)


def double(x_ptr: int, n: int, *, tl: Any) -> None:
    """Double the row of the PE."""
    row = x_ptr + 4 * n * (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0))
    tl.store(row, tl.load(row, (n,), "f32") * 2)
    tl.barrier()


def run_kernels(torch: RuntimeContext[Any], n: int = 40) -> Iterator[str]:
    """Run a product on one PE, and a kernel on all PEs of a SIP."""
    values = (np.arange(n * n) % 5).astype(np.float32).reshape(n, n)
    x, w = torch.tensor(values), torch.tensor(values)
    streamed, staged = torch.empty(n, n, dtype="f32"), torch.empty(n, n, dtype="f32")
    torch.launch("multiply", multiply, x, w, streamed, staged, n)
    yield from _find_difference("a streamed product", streamed.numpy(), values @ values)
    yield from _find_difference("a product in TCM", staged.numpy(), values @ values * 2 + 1)
    rows = np.arange(4 * n, dtype=np.float32).reshape(4, n)
    shared = torch.tensor(rows, dp=EVERYWHERE)
    torch.launch("double", double, shared, n)
    yield from _find_difference("rows that all PEs have doubled", shared.numpy(), rows * 2)


def run_collective(torch: RuntimeContext[Any]) -> Iterator[str]:
    """Run an all-reduce between all SIPs, through queues."""
    n_sips, shape, results = torch.topology.num_sips, (torch.topology.cubes_per_sip, 700), {}

    def rank_program(rank: int) -> None:
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        x = torch.full(shape, rank + 1, dtype="f32", dp=DPPolicy("row_wise", "replicate", num_pes=1))
        torch.distributed.all_reduce(x)
        results[rank] = x.numpy()
        torch.distributed.destroy_process_group()

    torch.multiprocessing.spawn(rank_program, nprocs=n_sips)
    total = shape[0] * n_sips * (n_sips + 1) / 2
    for rank in range(n_sips):
        yield from _find_difference(f"an all-reduce on rank {rank}", results[rank], np.full(shape, total))


def access_raw(torch: RuntimeContext[Any]) -> Iterator[str]:
    """Read and write HBM, SRAM and the TCM of another PE from PEs and the host, all at once, without results."""
    for handle in [torch.submit(message) for message in _accesses(torch)]:
        torch.wait(handle)
    yield from ()


def _accesses(torch: RuntimeContext[Any]) -> Iterator[HostMsg]:
    spec, fmt = torch.topology, AddressFormat(torch.topology.address.format)
    size, last_cube, last_sip = spec.cube.hbm.bytes_per_slice, spec.cubes_per_sip - 1, spec.num_sips - 1
    far = PhysAddr.pe_hbm_addr(0, 0, last_cube, 0, 0, size, fmt).encode()
    sram = PhysAddr.cube_sram_addr(0, 0, last_cube, 0, fmt).encode()
    tcm_of = (0, last_cube, spec.pes_per_cube - 1)
    tcm = PhysAddr.pe_tcm_addr(0, *tcm_of, 0, fmt).encode()
    away = PhysAddr.pe_hbm_addr(0, last_sip, 0, 0, 0, size, fmt).encode()
    for cube, pe in product(range(spec.cubes_per_sip), range(spec.pes_per_cube)):
        dma = partial(PeDmaMsg, pe=(0, cube, pe))
        yield dma(pa=far, nbytes=20_000)
        yield dma(pa=far + 8, nbytes=24, op="write", repeat=6, outstanding=3, stride_bytes=1300)
        yield dma(pa=sram, nbytes=5_000)
        yield dma(pa=sram, nbytes=3_000, op="write")
        yield dma(pa=away, nbytes=6_000, op="write")
        if (0, cube, pe) != tcm_of:
            yield dma(pa=tcm, nbytes=2_000)
    yield MemoryReadMsg(pa=away, nbytes=9_000)
    yield make_fill(torch)


def copy_through(x_ptr: int, ptr: int, n: int, *, tl: Any) -> None:
    """Copy there and back through another memory, and add one."""
    tl.store(ptr, tl.load(x_ptr, (n,), "f32"))
    tl.store(x_ptr, tl.load(ptr, (n,), "f32") + 1)


def use_extra_memories(torch: RuntimeContext[Any], n: int = 500) -> Iterator[str]:
    """Use each extra memory of the first SIP: by a kernel, then by PEs and the host at once."""
    memories = [node for node in torch.engine.topology.topology_obj.nodes.values() if node.window and node.sip == 0]
    for node in memories:
        values = np.arange(n, dtype=np.float32)
        x = torch.tensor(values)
        torch.launch("through", copy_through, x, torch.map_memory(node.id), n)
        yield from _find_difference(f"values copied through {node.id}", x.numpy(), values + 1)
    handles = []
    for node in memories:
        pa, nbytes = torch.engine.addresses_of(node.id)
        size = min(nbytes, 3_000)
        handles += [torch.submit(MemoryWriteMsg(pa=pa, nbytes=size)), torch.submit(MemoryReadMsg(pa=pa, nbytes=size))]
        for op in ("read", "write"):
            handles.append(torch.submit(PeDmaMsg(pe=(0, 0, 0), pa=pa, nbytes=size, op=op, repeat=3, outstanding=3)))
    for handle in handles:
        torch.wait(handle)


def make_fill(torch: RuntimeContext[Any]) -> HostMsg:
    """Return a request to the M_CPU of the first cube to fill a range of its HBM."""
    spec, fmt = torch.topology, AddressFormat(torch.topology.address.format)
    pa = PhysAddr.pe_hbm_addr(0, 0, 0, 0, 0, spec.cube.hbm.bytes_per_slice, fmt).encode()
    return MemoryWriteMsg(pa=pa, nbytes=5_000, pattern=b"x")


def _find_difference(label: str, actual: Any, expected: Any) -> Iterator[str]:
    wrong = np.flatnonzero(np.ravel(np.asarray(actual) != expected))
    if wrong.size:
        at = int(wrong[0])
        values = np.ravel(actual)[at], np.ravel(expected)[at]
        yield f"{label}: {wrong.size:,} elements are wrong, the first at {at}: {values[0]:g} instead of {values[1]:g}"


LIMITS = Limits(wall_s=120)
"""Limits for components that never stop; the traffic takes less than a second"""
EXTRA = ("cube.extra", "pe.extra")
"""The places of components of no builtin type"""
_SECTIONS = {"system": SYSTEM_KINDS, "sip": SIP_KINDS, "cube": (*CUBE_KINDS, "ucie"), "pe": PE_KINDS}


@value
class PartCheck:
    """A check of a component at a place of one type.

    ``problem`` describes the failure, None for a pass. ``note`` is a measurement.
    """

    kind: str
    name: str
    problem: str | None
    note: str | None = None

    @property
    def ok(self) -> bool:
        """True if the check passes."""
        return self.problem is None


class Trial:
    """A machine on which all programs have run; ``wrong`` has the errors in the programs' results."""

    def __init__(self, topology: Topology) -> None:
        self.engine = GraphEngine(topology, trace_hops=True, limits=LIMITS)
        with RuntimeContext[Any](self.engine) as torch:
            self.wrong = [*run_all_programs(torch)]
        self.engine.drain()

    @property
    def transfers(self) -> Iterable[Transfer]:
        """The transfers sent."""
        return self.engine.machine.network.traced


class Subject:
    """A component to be checked, by its name in the YAML file, at its places of one type."""

    def __init__(self, impl: str, kind: str) -> None:
        self.impl = impl
        self.kind = kind
        self.notes: dict[str, str] = {}  # by check

    @cached_property
    def trial(self) -> Trial:
        """The first run."""
        return Trial(self.machine())

    def machine(self, *sets: str) -> Topology:
        """Return the small machine with the component; ``sets`` are settings in its own section."""
        places = [f"{section}.components.{self.kind}" for section, kinds in _SECTIONS.items() if self.kind in kinds]
        settings = [f"{place}.{setting}" for place in places for setting in (f"impl={self.impl}", *sets)]
        return resolve_topology("default", [*SMALL_MACHINE, *(settings or self._extra(sets))])

    def includes(self, node: Node) -> bool:
        """Return True if ``node`` is a place of the component; at an extra place, the component chooses its type."""
        at_kind = node.is_extra if self.kind in EXTRA else node.kind == self.kind
        return node.impl == self.impl and at_kind

    def series_machine(self) -> Topology:
        """Return the machine on which a stream passes from SIP to SIP."""
        if self.kind not in _BY_SWITCH:
            return self.machine()
        places = [f"{section}.components.{self.kind}" for section, kinds in _SECTIONS.items() if self.kind in kinds]
        by_switch = [*SMALL_MACHINE, "system.sips.topology=switch", *(f"{place}.impl={self.impl}" for place in places)]
        return resolve_topology("default", by_switch)

    def _extra(self, sets: Sequence[str]) -> list[str]:
        """Return the settings of a component of no builtin type: a link, and addresses for a memory."""
        place, kind = (self.kind, "checked") if self.kind in EXTRA else (EXTRA[0], self.kind)
        neighbour = "sram" if place == EXTRA[0] else "pe_dma"
        keys = [f"kind={kind}", f"impl={self.impl}", f"links=[{{to: {neighbour}, bw_gbs: 64}}]"]
        keys += ["bytes=1MiB"] if issubclass(REGISTRY.lookup(self.impl), Memory) else []
        return [f"{place}.checked.{setting}" for setting in (*keys, *sets)]


def check_part(name: str, kinds: Sequence[str] = ()) -> Iterator[PartCheck]:
    """Yield all checks of a component for each type of place: the types ``kinds``, else the types that it declares.

    ``name`` is a registered name, ``my_pkg.parts:Part`` or ``file.py:Part``. Raises InputError if ``name`` is no
    component, if the component declares no type, and for a type that the component cannot have.
    """
    impl = name if ".py:" in name else name.replace(":", ".")
    for kind in _kinds(REGISTRY.lookup(impl), name, kinds):
        yield from _checks(Subject(impl, kind))


def _kinds(cls: type[Part], name: str, wanted: Sequence[str]) -> Sequence[str]:
    declared = REGISTRY.kinds_of(cls)
    allowed = (*(declared or KINDS), *EXTRA)
    for kind in wanted:
        if kind not in allowed:
            raise UnknownNameError(f"kind of {name}", kind, allowed)
    if not wanted and not declared:
        raise InputError(f"{name} does not say which kind of part it is: give --kind, one of {', '.join(allowed)}")
    return wanted or declared


def _checks(subject: Subject) -> Iterator[PartCheck]:
    """Yield the checks in order, up to the first failure, which the following checks would only repeat."""
    for name, check in CHECKS.items():
        problem = _problem(check, subject)
        yield PartCheck(subject.kind, name, problem, subject.notes.get(name))
        if problem is not None:
            return


def _problem(check: Callable[[Subject], Iterator[str]], subject: Subject) -> str | None:
    try:
        return next(check(subject), None)
    except Exception as error:
        prefix = "" if isinstance(error, KernbenchError) else f"{type(error).__name__}: "
        text = error.verdict if isinstance(error, SimulationDeadlock) else text_of(error)
        return f"{prefix}{text}".replace("\n", "; ")


# --- checks -----------------------------------------------------------------------------------------------------------


USES = (PartUse(0, 0, 0, 0.0), PartUse(1 << 50, 1 << 50, 1 << 40, 1e12))
"""A part that did nothing, and a part that did more than any run does"""


def states_energy(subject: Subject) -> Iterator[str]:
    """Check that the energies that the class states, if any, are numbers, and so are its power and its area."""
    engine = GraphEngine(subject.machine())
    area = measure_area(engine.topology)
    yield from () if area is None else area.faults
    part = next(engine.component(node.id) for node in engine.machine.graph.nodes.values() if subject.includes(node))
    if part.states_energy:
        yield from (answer for answer in (ask_energy(part, use) for use in USES) if isinstance(answer, str))


def is_wired(subject: Subject) -> Iterator[str]:
    """Check that the machine can be built, with a component at each place of the type."""
    engine = GraphEngine(subject.machine())
    for node in engine.machine.graph.nodes.values():
        if node.impl == subject.impl and not isinstance(engine.component(node.id), Component):
            yield f"{node.id} is no component"


def has_typed_attributes(subject: Subject) -> Iterator[str]:
    """Check that the class rejects an unknown key."""
    try:
        subject.machine("attrs.no_such_key=1")
    except ConfigError:
        return
    yield "its Attrs accepts unknown keys: derive it from the Attrs of its kind, without extra='allow'"


def answers_all(subject: Subject) -> Iterator[str]:
    """Check that every request has ended successfully, and that no component waits."""
    engine = subject.trial.engine
    yield from (f"{handle} has not ended" for handle in engine.handles if not handle.done)
    for part in engine.machine.components:
        yield from (f"{part.node.id} still waits: {line}" for line in part.blocked())


def conserves_bytes(subject: Subject) -> Iterator[str]:
    """Check that all bytes arrive once and unchanged, at their destination and in the tensors read back."""
    trial, network = subject.trial, subject.trial.engine.machine.network
    yield from trial.wrong
    if network.undelivered:
        yield f"{network.undelivered} transfers were not delivered"
    sent, arrived, passed = Counter[str](), Counter[str](), set[str]()
    for transfer in trial.transfers:
        *earlier, last = transfer.route.links
        sent[last.dst] += transfer.nbytes
        passed.update(link.dst for link in earlier)
    for link in link_traffic(trial.engine.machine):
        arrived[link.dst] += link.nbytes
    for node, nbytes in sent.items():
        if node not in passed and arrived[node] != nbytes:
            yield f"{nbytes:,} bytes were sent to {node}, {arrived[node]:,} arrived"


def keeps_time(subject: Subject) -> Iterator[str]:
    """Check that nothing ends before it begins, and that everything that begins ends."""
    columns = subject.trial.engine.machine.log.columns()
    for number in np.flatnonzero((columns.end < columns.start) | (columns.start < 0)):
        begin, end = int(columns.start[number]), int(columns.end[number])
        until = f"ended at {end} ps" if end >= 0 else "has not ended"
        yield f"work that {columns.parts[columns.part[number]]} began at {begin} ps {until}"


def is_deterministic(subject: Subject) -> Iterator[str]:
    """Check that two runs are the same."""
    first, second = (trial.engine.machine.log.columns() for trial in (subject.trial, Trial(subject.machine())))
    if first.parts != second.parts or first.start.size != second.start.size:
        yield f"{second.start.size:,} log rows in a second run, {first.start.size:,} in the first"
        return
    for at in np.flatnonzero((first.start != second.start) | (first.end != second.end)):
        part, was = first.parts[first.part[at]], f"{first.start[at]} to {first.end[at]} ps"
        yield f"{part} is busy {second.start[at]} to {second.end[at]} ps in a second run, {was} in the first"


def resets(subject: Subject) -> Iterator[str]:
    """Check that, after a failed kernel and an abandoned one, programs take the same time as on a new machine."""
    disturbed, fresh = (GraphEngine(subject.machine(), limits=LIMITS) for _ in range(2))
    for program in (fail_launch, abandon_launch):
        with suppress(_PlannedError), RuntimeContext[Any](disturbed) as torch:
            program(torch)
    last = disturbed.submit(make_fill(torch))
    disturbed.run_until(disturbed.now + 50)
    disturbed.abandon([last])
    begin_ns = ceil(disturbed.now / 10_000) * 10_000
    times = []
    for engine in (disturbed, fresh):
        engine.run_until(begin_ns)
        with RuntimeContext[Any](engine) as torch:
            yield from run_all_programs(torch)
        times.append(round(engine.now - begin_ns, 3))
    if times[0] != times[1]:
        yield f"programs take {times[0]} ns after an abandoned launch, {times[1]} ns on a new machine: state is left"


class _PlannedError(Exception):
    """An error that a program raises on purpose."""


def fail_launch(torch: RuntimeContext[Any]) -> None:
    """Launch a kernel that fails on one PE."""

    def kernel(ptr: int, *, tl: Any) -> None:
        tl.load(ptr, (4,), "f32")
        raise _PlannedError

    torch.launch("failing", kernel, torch.zeros(4))


def abandon_launch(torch: RuntimeContext[Any]) -> None:
    """Launch an endless kernel, and end the program."""

    def kernel(ptr: int, *, tl: Any) -> None:
        while True:
            tl.load(ptr, (4,), "f32")

    torch.launch("endless", kernel, torch.zeros(4), async_op=True)
    torch.engine.run_until(torch.engine.now + 2000)
    raise _PlannedError


STREAMS = (64, 4 << 10, 1 << 20)
"""Bytes of the streams through components in series"""
BURST_BYTES = 16 << 10
"""Bytes that a component may pass at once after a pause, at any rate"""
TOLERANCE = 1.05
_BY_SWITCH = ("switch", "pcie_ep")
"""Types in series between two SIPs if the host's switch connects the SIPs"""
PACES = "paces as it says"


def paces(subject: Subject) -> Iterator[str]:
    """Check that streams through two or more components in series run at the slowest rate that these declare.

    The time of one byte is the latency of the route. Each component may delay a packet by its time at the declared
    rate, and may pass ``BURST_BYTES`` at once. Components without a declared rate are only measured.
    """
    if "rate_gbs" not in called_at(subject.kind):
        return
    way_ps = _stream_ps(subject, 1)
    durations_ps = {nbytes: _stream_ps(subject, nbytes) for nbytes in STREAMS}
    series = SeriesOfParts(subject)
    rates = ", ".join(f"{format_size(nbytes)} {_show_gbs(nbytes, ps - way_ps)}" for nbytes, ps in durations_ps.items())
    subject.notes[PACES] = f"{series.count} in series: {rates}; it says {series.rate_text}"
    if not series.pacing:
        return
    for nbytes, ps in durations_ps.items():
        least_ps, most_ps = series.least_ps(nbytes), series.most_ps(nbytes) + way_ps
        if not least_ps <= ps <= most_ps:
            bounds = " to ".join(f"{ps_to_ns(bound_ps):,.12g}" for bound_ps in (least_ps, most_ps))
            yield (
                f"{format_size(nbytes)} through {series.count} in series took {ps_to_ns(ps):,.12g} ns, beside the way "
                f"{_show_gbs(nbytes, ps - way_ps)}; it says {series.rate_text}, which is {bounds} ns"
            )


def _show_gbs(nbytes: int, ps: int) -> str:
    """Return as text the rate of ``nbytes``, the last of which arrives ``ps`` after the first."""
    return f"{(nbytes - 1) * PS_PER_NS / ps:.3g} GB/s" if ps > 0 else "at once"


class SeriesOfParts:
    """The components of a type on the route of a stream, on a separate machine.

    ``count`` is the number of these components. ``pacing`` has the components that declare a rate, each with the time
    in ps at which the stream's head arrives there.
    """

    def __init__(self, subject: Subject) -> None:
        machine, self._route = _series(subject)
        parts = zip(self._route.offsets, (machine.component(link.src) for link in self._route.links), strict=True)
        of_kind = [pair for pair in parts if subject.includes(pair[1].node)]
        self.count = len(of_kind)
        self.pacing = [(offset, part) for offset, part in of_kind if part.says_rate]

    @property
    def rate_text(self) -> str:
        """The rates that the components declare, as text."""
        rates = [part.rate_at(0) for _, part in self.pacing]
        if not rates:
            return "no rate"
        constant = all(rate.until_ps == NEVER for rate in rates)
        return f"{min(rate.gbs for rate in rates):g} GB/s" if constant else "a rate that changes"

    def least_ps(self, nbytes: int) -> int:
        """Return the least time of a stream in ps: each component passes the bytes beyond a burst at its rate."""
        route, paced = self._route, max(1, round((nbytes - BURST_BYTES) / TOLERANCE))
        return max(
            VaryingRate(part.rate_at).end_ps(paced, offset, route.bottleneck_gbs) + route.total_overhead_ps - offset
            for offset, part in self.pacing
        )

    def most_ps(self, nbytes: int) -> int:
        """Return the longest permitted time of a stream in ps, without the latency of the route.

        At each moment the slowest component sets the rate; each component may add the time of a packet.
        """
        more = self.count * min(nbytes, self._route.packet_bytes)
        end = VaryingRate(self._slowest_at).end_ps(nbytes + more, 0, self._route.bottleneck_gbs)
        return round(end * TOLERANCE) + PS_PER_NS

    def _slowest_at(self, now_ps: int) -> RateStretch:
        rates = [part.rate_at(now_ps) for _, part in self.pacing]
        return RateStretch(min(rate.gbs for rate in rates), min(rate.until_ps for rate in rates))


def _series(subject: Subject) -> tuple[Machine, Route]:
    """Return a machine and a route through components of the type in series.

    The route starts at a component of the type if packets do not pass through such components.
    """
    machine = GraphEngine(subject.series_machine(), enable_data=False, limits=LIMITS).machine
    first = next(node.id for node in machine.graph.nodes.values() if node.kind == "pe_dma")
    last = [node.id for node in machine.graph.nodes.values() if node.kind == "hbm_ctrl"][-1]
    if "hold_packet_ns" in called_at(subject.kind):
        return machine, machine.route(first, last)
    source = next(node.id for node in machine.graph.nodes.values() if subject.includes(node))
    return machine, machine.route(source, last if source != last else first)


def _stream_ps(subject: Subject, nbytes: int) -> int:
    """Return the time in ps that ``nbytes`` take through components of the type, on a new machine."""
    machine, route = _series(subject)
    delivered: list[Transfer] = []
    machine.network.post(machine.network.port(route.links[0].src), route, nbytes, delivered.append, "a stream")
    machine.clock.advance(ns_to_ps(LIMIT_NS))
    if not delivered:
        raise InputError(f"a stream of {format_size(nbytes)} was not delivered in {LIMIT_NS:,.0f} ns")
    return delivered[0].delivered_ps


LIMIT_NS = 1e9
"""The limit of a stream in simulated ns; a longer stream has stopped"""

CHECKS: dict[str, Callable[[Subject], Iterator[str]]] = {
    "is wired": is_wired,
    "typed attributes": has_typed_attributes,
    "answers all requests": answers_all,
    "conserves bytes": conserves_bytes,
    "keeps time": keeps_time,
    "deterministic": is_deterministic,
    "resets": resets,
    "states energy": states_energy,
    PACES: paces,
}
