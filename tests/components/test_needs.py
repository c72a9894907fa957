"""Random programs of every kind of command: each row begins when the last of what it needs is there, and says so."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from needs_programs import MACHINES, OPS, PES, Op, play

from causes import check_causes
from kernbench.observe.critical_path import PathFinder
from kernbench.observe.critical_path_model import Part
from kernbench.observe.trace_log import TraceLog
from needs import NeedsEngine, check_needs
from path_support import check


def check_run(engine: NeedsEngine, trace: TraceLog) -> None:
    """Causes, needs, and paths that add up, with every wait explained."""
    check_causes(engine.machine)
    check_needs(engine)
    finder = PathFinder(trace, engine.handles)
    now = engine.machine.clock.time
    paths = [(finder.of_run(0, now), 0, now)]
    paths += [(finder.of_request(each), each.submitted_ps, each.ended_ps) for each in engine.handles]
    for path, start, end in paths:
        check(path, start, end)
        assert Part.WAIT not in {each.part for each in path.parts}, path


@settings(max_examples=15)
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
