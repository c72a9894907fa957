"""The cases whose simulation must not change, and what is kept of each.

    python tests/frozen/freeze.py list
    python tests/frozen/freeze.py dump CASE             # sorted records and figures as text, to diff two checkouts
    python tests/frozen/freeze.py write [CASE...]       # freeze anew: all cases (minutes), or these

Freeze anew only when simulated behaviour is meant to change, in the commit that changes it, which says what changed and
why. Figures are of all that users can see: records, memory, times, events, texts; what is said of a run is not frozen:
``tests/observe/test_verdicts.py`` holds it against experiments. A line of a kernel is its rank among the kernel's lines
that made records, so that sources may be edited.

Memory of most cases is as this computer rounds. That of *exact* cases is the same on every computer: they add small
numbers, and can be frozen and compared anywhere.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "components"), str(HERE.parent / "ccl")]

import data_programs  # noqa: E402
import numpy as np  # noqa: E402
import one_program  # noqa: E402
import programs  # noqa: E402
from algorithm_support import Collective  # noqa: E402

from kernbench.ccl.install import load_ccl_config  # noqa: E402
from kernbench.common.errors import KernbenchError  # noqa: E402
from kernbench.engine.requests import Limits  # noqa: E402
from kernbench.observe.statistics import link_traffic  # noqa: E402
from kernbench.probe.cases import CASES as PROBES  # noqa: E402
from kernbench.probe.cases import ProbeCase, Site  # noqa: E402
from kernbench.probe.measure import run_once, run_streams, stream_plan  # noqa: E402
from kernbench.runtime_api.bench_registry import lookup_bench  # noqa: E402
from kernbench.runtime_api.bench_runner import run_bench  # noqa: E402
from kernbench.runtime_api.requests import RequestRecord  # noqa: E402
from kernbench.sim_engine.engine import GraphEngine  # noqa: E402
from kernbench.topology.builder import Topology, resolve_topology  # noqa: E402
from observed import sanitized  # noqa: E402

FIGURES = HERE / "figures.json"
SKEWED = HERE.parent / "data" / "skewed.yaml"
SMALL = ("sip.cube_mesh={w: 2, h: 1}",)
"""Two SIPs of two cubes."""
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Played:
    """A case that has run: the machine as it is then, its requests, and what was said."""

    engine: GraphEngine
    text: str
    requests: tuple[RequestRecord, ...] = ()


@dataclass(frozen=True)
class Case:
    """Something that is simulated.

    ``slow``: takes more than a few seconds, or one of many alike. ``exact``: its numbers are the same
    on every computer.
    """

    name: str
    play: Callable[[], Played]
    slow: bool = False
    exact: bool = False


# --- what is kept of a case -------------------------------------------------------------------------------------------


def figures_of(played: Played) -> Figures:
    """What is frozen of a case."""
    engine, listed = played.engine, listing(played)
    return {
        **{what: sha256(line.encode() + b"\n" for line in lines) for what, lines in listed.items() if lines},
        "end_ps": round(engine.now * 1000),
        "events": engine.n_events,
        "n_records": len(listed["records"]),
        "text": played.text,
    }


def listing(played: Played) -> dict[str, list[str]]:
    """Everything that figures are digests of, as lines of text."""
    engine = played.engine
    return {
        "records": sorted(_record_lines(engine)),
        "requests": [_request_line(each) for each in played.requests],
        "links": [
            f"{x.src} {x.dst} {x.nbytes} B busy {x.busy_ns:.3f} ns, FIFO {x.peak_fifo_bytes} B"
            for x in link_traffic(engine.machine)
        ],
        **{f"memory {space}": _memory_lines(engine, space) for space in ("hbm", "sram", "tcm")},
    }


def _record_lines(engine: GraphEngine) -> Iterator[str]:
    lines_of: dict[str, set[int]] = {}
    for each in engine.op_log:
        lines_of.setdefault(each.kernel, {0}).add(each.line)
    rank = {(kernel, line): at for kernel, lines in lines_of.items() for at, line in enumerate(sorted(lines))}
    for r in engine.op_log:
        times = f"{r.t_start_ps:>12} {r.t_read_ps:>12} {r.t_commit_ps:>12} {r.t_end_ps:>12}"
        line = rank[r.kernel, r.line]
        yield f"{times} {r.component} {r.kind} {r.name} launch {r.launch_id} line {line} tile {r.tile}"


def _request_line(r: RequestRecord) -> str:
    times = f"{r.t_start_ns:.3f} {r.t_end_ns:.3f}"
    return f"{times} {r.request_id} {r.phase} {r.name} {r.nbytes} B {sorted(r.pe_exec_ns.items())}"


def _memory_lines(engine: GraphEngine, space: str) -> list[str]:
    """A digest of each range of a space that was written. TCM is a figure apart: scratch lies where there is room."""
    written: set[tuple[int, int]] = set()
    for to in (record.output for record in engine.op_log):
        if to is not None and to.space == space:
            reach = to.nbytes
            if to.strides is not None:
                reach = to.dtype.itemsize + sum((n - 1) * step for n, step in zip(to.shape, to.strides, strict=True))
            written.update(to.segments or [(to.address, reach)])
    if not written:
        return []
    store = engine.memory_store
    return [
        f"{low:#x} to {high:#x}: {sha256([store.read(space, low, (high - low,), 'i8').tobytes()])}"
        for low, high in joined(written)
    ]


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges (address, size) as (begin, end), those that touch as one."""
    found: list[tuple[int, int]] = []
    for low, nbytes in sorted(ranges):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], low + nbytes)
        else:
            found.append((low, low + nbytes))
    return found


def sha256(parts: Iterable[bytes]) -> str:
    """The digest of all parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def anywhere(text: str) -> str:
    """A text without the folder of this checkout, and without lines of the collective that ships with the package."""
    return "\n".join(
        re.sub(r"\bline \d+", "line #", row) if "kernel 'sip_allreduce'" in row else row
        for row in text.replace(f"{ROOT}/", "").split("\n")
    )


# --- cases ------------------------------------------------------------------------------------------------------------


def bench_case(
    name: str,
    program: Callable[[Any], object] | str,
    *,
    params: tuple[str, ...] = (),
    machine: tuple[str, ...] = SMALL,
    file: Path | str = "default",
    ccl: tuple[str, ...] = (),
    slow: bool = False,
    exact: bool = False,
    engine: Callable[[Topology], GraphEngine] = GraphEngine,
) -> Case:
    """A host program, or the registered bench of a name, with data.

    Its text is what it returns or fails with, and what it is warned of.
    """

    def play() -> Played:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            done = run_bench(
                topology=resolve_topology(file, machine),
                bench_fn=lookup_bench(program) if isinstance(program, str) else program,
                engine_factory=lambda topology, _: engine(topology),
                params=params,
                ccl=load_ccl_config(ROOT / "ccl.yaml", ccl),
            )
        assert isinstance(done.engine, GraphEngine)
        error = done.completion.error
        said = [str(done.value)] if done.value is not None else []
        said += [f"{type(error).__name__}: {error}"] if error is not None else []
        said += [f"warning: {each.message}" for each in warned if each.category is RuntimeWarning]
        return Played(done.engine, anywhere("\n".join(said)), done.traces)

    return Case(name, play, slow, exact)


def probe_case(case: ProbeCase) -> Case:
    """The flows of a probe case: one transaction of each, then streams."""

    def play() -> Played:
        topology = resolve_topology("default")
        flows = case.place(Site(topology.topology_obj))
        assert isinstance(flows, tuple)
        plan = stream_plan(GraphEngine(topology, enable_data=False), flows, 4096)
        plan = replace(plan, transactions=plan.transactions // 4)
        engine = GraphEngine(topology)
        spans = run_once(engine, flows, 4096), run_streams(engine, flows, plan)
        return Played(engine, f"{plan} {spans}")

    return Case(f"probe/{case.name}", play)


def queue_case(name: str, kernel: Callable[..., object], *args: Any, kind: str = "tcm", **settings: Any) -> Case:
    """A kernel on a ring of four PEs whose queues lie in ``kind``."""
    algorithm = f"ring_allreduce_{kind}"
    ccl = [f"algorithms.{algorithm}.{key}={value}" for key, value in settings.items()]
    return bench_case(
        f"queues/{name}-{kind}",
        lambda torch: programs.on_ring(torch, kernel, *args, rows=8),
        ccl=(f"defaults.algorithm={algorithm}", *ccl),
    )


def ring_case(name: str, program: Callable[[Any], object], **more: Any) -> Case:
    """A program whose queues are those of the ring."""
    return bench_case(name, program, ccl=("defaults.algorithm=ring_allreduce_tcm",), **more)


def schedule_case(name: str, make: Callable[[], Collective], *, slow: bool = False) -> Case:
    """A schedule by itself: its text is its error, and what phase 2 has carried out."""

    def play() -> Played:
        run, said = make(), []
        try:
            run.on_machine()
        except KernbenchError as error:
            said = [anywhere(f"{type(error).__name__}: {error}")]
        engine = run.engine
        assert engine is not None
        engine.drain()
        engine.replay()
        stats = engine.phase2_stats
        return Played(engine, "\n".join([*said, f"{stats.ops} operations, {stats.nbytes} bytes"]))

    return Case(f"schedules/{name}", play, slow, exact=True)


def exact_case(name: str, program: Callable[[Any], object], **more: Any) -> Case:
    """A program whose queues are those of the ring, and whose numbers are the same on every computer."""
    return ring_case(name, program, exact=True, **more)


def random_case(first: int, count: int) -> Case:
    """Programs by chance, of these seeds: its text has the time, the events and a digest of each."""

    def play() -> Played:
        said = []
        for seed in range(first, first + count):
            one = ring_case("", data_programs.random_program(seed)).play()
            lines = (f"{part} {line}\n".encode() for part, lines in listing(one).items() for line in lines)
            digest = sha256([*lines, one.text.encode()])
            said.append(f"{seed}: {round(one.engine.now * 1000)} ps, {one.engine.n_events} events, {digest[:32]}")
        return Played(one.engine, "\n".join(said))

    return Case(f"data/random {first} to {first + count - 1}", play, slow=first > 0, exact=True)


BENCHES = {
    "attention": (),
    "ccl-allreduce": (),
    "gemm-single-pe": (),
    "hello-send": (),
    "ipcq-allreduce": (),
    "matmul-composite": (),
    "qkv-gemm": (),
    "qkv-gemm-multi-pe": (),
    "tp-block": (),
    "tp-mlp": (),
    "va-offset-verify": (),
    "gemm-single-pe small": ("bench.m=130", "bench.k=300", "bench.n=70"),
    "qkv-gemm-multi-pe small": ("bench.m=5", "bench.width=160", *SMALL),
    "gemm-single-pe small, streamed": ("bench.m=130", "bench.k=300", "bench.n=70", "bench.variant=ref_ref"),
    "matmul-composite ref_ref": ("bench.variant=ref_ref",),
    "matmul-composite load_ref": ("bench.variant=load_ref",),
    "matmul-composite load_load": ("bench.variant=load_load",),
}
"""Benches and what is set; the evaluations run benches and have tests of their own."""
SLOW_BENCHES = ("qkv-gemm-multi-pe", "gemm-single-pe", "tp-block", "tp-mlp", "va-offset-verify")
STOP = Limits(sim_ns=14000)
KINDS = ("tcm", "hbm", "sram")
ALGORITHMS = (
    "ring_allreduce_tcm",
    "ring_allreduce_hbm",
    "ring_allreduce_sram",
    "ring_allreduce_rs_ag",
    "mesh_allreduce_4",
    "tree_allreduce_7",
    "hierarchical_allreduce",
    "intercube_allreduce",
)
FAILING = (
    programs.raises_on_one,
    programs.waits_in_vain,
    programs.fills_a_queue,
    programs.misses_a_barrier,
    programs.receives_another_size,
    programs.runs_out_of_scratch,
    programs.leaves_its_tensor,
)


def _cases() -> Iterator[Case]:
    for name, sets in BENCHES.items():
        params = tuple(text for text in sets if text.startswith("bench."))
        machine = tuple(text for text in sets if text not in params)
        bench, slow = name.split(maxsplit=1)[0], name in SLOW_BENCHES
        yield bench_case(f"bench/{name}", bench, params=params, machine=machine, slow=slow)
    yield from map(probe_case, PROBES)
    for kind in KINDS:
        yield queue_case("pass", programs.pass_on, kind=kind)
        yield queue_case("forward", programs.forward, kind=kind)
        yield queue_case("any", programs.receive_any, kind=kind)
        yield queue_case("wrap", programs.wrap_ring, kind=kind, n_slots=3)
        yield queue_case("full", programs.fill_slots, 12, 3, kind=kind, n_slots=1)
        yield queue_case("copies", programs.copy_messages, kind=kind)
        yield queue_case("posted", programs.post_receives, kind=kind)
    yield queue_case("poll", programs.fill_slots, 9, 5, kind="tcm", n_slots=2, backpressure="poll", poll_ns=17)
    yield queue_case("poll", programs.fill_slots, 9, 5, kind="hbm", n_slots=1, backpressure="poll", poll_ns=50)
    yield ring_case("queues/across cubes and SIPs", programs.across_cubes)
    yield ring_case("queues/left", programs.leave_messages)
    yield ring_case("queues/sram messages", programs.sram_messages)
    for algorithm in ALGORITHMS:
        sets = (f"bench.algorithm={algorithm}", "bench.world_size=null", "bench.n_elem=700")
        yield bench_case(f"all-reduce/{algorithm}", "ipcq-allreduce", params=sets)
    for program in (
        programs.barriers,
        programs.collectives,
        programs.configured_all_reduce,
        programs.ranks_with_kernels,
        programs.host_fills,
        programs.host_copies,
        programs.copies_between_slices,
        programs.composites,
        programs.elementwise_composites,
        programs.language,
        programs.shipped_kernels,
        programs.scratch,
        programs.launches,
        programs.memory_order,
        programs.cancelled,
        programs.rank_fails,
        programs.rank_never_joins,
    ):
        yield bench_case(program.__name__, program)
    yield bench_case("memory_order relaxed", programs.memory_order, machine=(*SMALL, "pe.dma.ordering=relaxed"))
    in_flight = "pe.components.pe_scheduler.attrs.tiles_in_flight=1"
    yield bench_case("composites by single tiles", programs.composites, machine=(*SMALL, in_flight))
    for program in (programs.copies_between_slices, programs.barriers, programs.host_copies):
        yield bench_case(f"{program.__name__} hop by hop", program, machine=(*SMALL, "transport.express=false"))
    for kernel in FAILING:
        yield ring_case(f"fails/{kernel.__name__}", programs.failing(kernel))
    yield ring_case("fails/uncaught", programs.uncaught)
    yield ring_case("fails/deadlocked", programs.deadlocked)
    yield bench_case("stopped/tp-mlp", "tp-mlp", machine=(), engine=partial(GraphEngine, limits=STOP))
    yield ring_case("sanitized", programs.races, engine=sanitized)
    yield bench_case("skewed/host_copies", programs.host_copies, file=SKEWED, machine=())
    for step in one_program.EVERY_STEP[1:]:
        yield bench_case(f"skewed/{_step_name(step)}", _discarding(step), file=SKEWED, machine=())
        yield bench_case(f"small/{_step_name(step)}", _discarding(step), machine=one_program.SMALL)
    yield from _cases_of_data()


def _cases_of_data() -> Iterator[Case]:
    """What phase 2 makes of schedules, of failures, of looks in mid-run, and of accesses that nothing orders."""
    for algorithm in data_programs.ALGORITHMS:
        for dtype, fewest in (("f32", True), ("bf16", False)):
            make = partial(data_programs.by_algorithm, algorithm, dtype, fewest=fewest)
            yield schedule_case(f"{algorithm} {dtype}", make, slow=not fewest)
    for kind in KINDS:
        for n_slots in (3, 4, 7):
            make = partial(data_programs.on_ring, data_programs.uneven, 20, kind=kind, n_slots=n_slots)
            yield schedule_case(f"uneven-{kind}-{n_slots}", make, slow=n_slots == 4)
    yield schedule_case("chain", partial(data_programs.on_ring, data_programs.chain, 40, 8))
    yield schedule_case("mistaken", partial(data_programs.on_ring, data_programs.mistaken, 40))
    yield schedule_case("looked at", partial(data_programs.looked_at, 300, 7))
    yield schedule_case("written into scratch", partial(data_programs.written_into, 3000, at_end=False))
    yield schedule_case("written behind rings", partial(data_programs.written_into, 3000, at_end=True))
    yield schedule_case("one kernel", data_programs.one_kernel)
    yield schedule_case("sanitized", lambda: data_programs.sanitized(data_programs.ring(300)))
    yield bench_case(
        "schedules/two rounds", data_programs.two_rounds, machine=(*SMALL, "system.sips.count=3"), exact=True
    )
    without = partial(GraphEngine, enable_data=False)
    relaxed = (*SMALL, "pe.dma.ordering=relaxed")
    for twin, engine in (("", GraphEngine), (" without data", without)):
        yield exact_case(f"data/posted under failure{twin}", data_programs.posted_under_failure, engine=engine)
        yield exact_case(f"data/values{twin}", data_programs.values_in_mid_run, engine=engine)
        yield exact_case(f"data/unordered{twin}", data_programs.unordered, engine=engine)
        yield exact_case(f"data/unordered relaxed{twin}", data_programs.unordered, machine=relaxed, engine=engine)
        yield exact_case(f"data/files{twin}", data_programs.files, engine=engine)
    yield schedule_case("uneven-tcm-3 without data", _uneven_without_data)
    yield exact_case("data/values unseen", data_programs.values_unseen)
    yield exact_case("data/values sanitized", data_programs.values_in_mid_run, engine=sanitized)
    yield exact_case("data/unordered sanitized", data_programs.unordered, engine=sanitized)
    yield exact_case("data/files of values", data_programs.files_of_values)
    yield random_case(0, 20)
    yield from (random_case(first, 20) for first in range(20, 200, 20))


def _uneven_without_data() -> Collective:
    return data_programs.on_ring(data_programs.uneven, 20, n_slots=3, enable_data=False)


def _step_name(step: Any) -> str:
    keywords = getattr(step, "keywords", {})
    return " ".join([getattr(step, "func", step).__name__, *keywords.values()])


def _discarding(step: Callable[[Any], object]) -> Callable[[Any], None]:
    return lambda torch: step(torch) and None


CASES = {case.name: case for case in _cases()}


# --- the command ------------------------------------------------------------------------------------------------------


def numerics() -> str:
    """A digest of how NumPy rounds here, which is the computer's affair: its BLAS adds in an order of its own."""
    parts = []
    for n in (3, 17, 64, 100, 256):
        x = np.sin(np.arange(n * n, dtype=np.float32)).reshape(n, n)
        parts += [each.tobytes() for each in (x @ x, np.exp(x), np.tanh(x), x.sum(axis=1))]
    return sha256(parts)


@dataclass(frozen=True)
class Stored:
    """The figures that are frozen, by case, and the ``numerics`` of the computer that they were made on."""

    numerics: str
    cases: Mapping[str, Figures]


def stored() -> Stored:
    """What ``figures.json`` has."""
    return Stored(**json.loads(FIGURES.read_text()))


def write(names: Iterable[str]) -> None:
    """Freeze these cases anew. Memory of cases by different numerics is not to be mixed, but for exact ones."""
    before = stored() if FIGURES.exists() else Stored(numerics(), {})
    rounded = {name for name, case in CASES.items() if not case.exact}
    frozen_here = before.numerics if rounded.isdisjoint(names) else numerics()
    if before.numerics != frozen_here and not rounded <= set(names):
        sys.exit("this computer rounds in another way: freeze all cases, or exact ones only (freeze.py list)")
    found = {**before.cases, **{name: figures_of(CASES[name].play()) for name in names}}
    made = Stored(frozen_here, {name: found[name] for name in CASES if name in found})
    FIGURES.write_text(json.dumps(asdict(made), indent=1) + "\n")


def main(what: str, *names: str) -> None:
    """The command: see the module."""
    unknown = set(names) - set(CASES)
    if unknown:
        sys.exit(f"not known: {', '.join(sorted(unknown))}; see: freeze.py list")
    if what == "list":
        print("\n".join(f"{case.name}{'  (slow)' * case.slow}{'  (exact)' * case.exact}" for case in CASES.values()))
    elif what == "dump":
        for name in names:
            played = CASES[name].play()
            for part, lines in listing(played).items():
                print(f"# {part}", *lines, sep="\n")
            print(json.dumps(figures_of(played), indent=1))
    elif what == "write":
        write(names or CASES)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:] or ["help"])
