"""Random programs of every kind of command: each row begins when the last of what it needs is there, and says so."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from needs_programs import MACHINES, OPS, PES, Op, play

from causes import check_causes
from engine_support import machine
from kernbench.observe.critical_path import PathFinder
from kernbench.observe.critical_path_model import PathPart
from kernbench.observe.trace_log import TraceLog
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_bench
from needs import NeedsEngine, check_needs
from path_support import check


def check_run(engine: NeedsEngine, trace: TraceLog) -> None:
    """Causes, needs, and paths that add up, with every wait explained."""
    check_causes(engine.machine)
    check_needs(engine)
    finder = PathFinder(trace.seen, engine.handles)
    now = engine.machine.clock.time
    paths = [(finder.of_run(0, now), 0, now)]
    paths += [(finder.of_request(each), each.submitted_ps, each.ended_ps) for each in engine.handles]
    for path, start, end in paths:
        check(path, start, end)
        assert PathPart.WAIT not in {each.part for each in path.parts}, path
    for each, (path, _, _) in zip(engine.handles, paths[1:], strict=True):
        assert path == PathFinder(trace.seen, engine.handles).of_request(each), (
            "walked alone, or as a part of the run's"
        )


@given(
    ops=st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 7)), max_size=5),
    pace=st.lists(st.integers(0, 9), min_size=PES, max_size=PES),
    launches=st.integers(1, 2),
    host=st.sampled_from((None, "fill", "traffic")),
    kind=st.sampled_from(("tcm", "hbm", "sram")),
    n_slots=st.integers(2, 3),
    backpressure=st.sampled_from(({}, {"backpressure": "poll", "poll_ns": 17})),
    changes=st.sampled_from(MACHINES),
)
def test_any_program(ops: list[Op], backpressure: dict[str, Any], **settings: Any) -> None:
    check_run(*play(ops, **settings, **backpressure))


# --- ranks ------------------------------------------------------------------------------------------------------------


def add_one(x: int, n: int, *, tl: Any) -> None:
    at = x + tl.program_id(0) * n * 4
    tl.store(at, tl.load(at, n, "f32") + 1.0)


RANK_OPS = ("all_reduce", "broadcast", "barrier", "kernel", "kernel under way", "copy", "fill", "read", "send")
ONE_CUBE = ("sip.cube_mesh.w=1", "sip.cube_mesh.h=1")


@example(ops=["all_reduce"] * 3, late=0)  # more messages than slots, in queues that are gone at the end
@given(ops=st.lists(st.sampled_from(RANK_OPS), min_size=1, max_size=4), late=st.integers(0, 2))
def test_any_ranks(ops: list[str], late: int) -> None:
    """Two ranks that launch, copy, and wait for each other."""
    topology = machine(*ONE_CUBE)
    engine = NeedsEngine(topology)
    trace = TraceLog()
    trace.begin(engine.machine)

    def of_rank(torch: Any, rank: int) -> None:
        dist = torch.distributed
        x = torch.full((4, 64), rank + 1.0, dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=4))
        for _ in range(late * rank):
            torch.launch("late", add_one, x, 64)
        for op in ops:
            match op:
                case "all_reduce":
                    dist.all_reduce(x, elementwise=True)
                case "broadcast":
                    dist.broadcast(x, 1)
                case "barrier":
                    dist.barrier()
                case "send":
                    (dist.recv if rank else dist.send)(x, 1 - rank)
                case "kernel":
                    torch.launch(op, add_one, x, 64)
                case "kernel under way":
                    torch.launch(op, add_one, x, 64, async_op=True)
                case "copy":
                    x.copy_(np.ones((4, 64), np.float32))
                case "fill":
                    x.fill_(3)
                case "read":
                    x.numpy()

    def program(torch: Any) -> None:
        def main(rank: int) -> None:
            torch.ahbm.set_device(rank)
            torch.distributed.init_process_group("ahbm")
            of_rank(torch, rank)
            torch.distributed.destroy_process_group()

        torch.multiprocessing.spawn(main, nprocs=2)

    with engine.observed():
        done = run_bench(topology=topology, bench_fn=program, engine_factory=lambda *_: engine)
    assert done.error is None, done.error
    check_run(engine, trace)
