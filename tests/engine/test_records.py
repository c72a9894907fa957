"""The op-log of a machine: what phase 2 asks it for, and the records that are made of it when somebody looks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine_support import Placed, fetch, launch, place, two_cubes
from kernbench.common.errors import RunError
from kernbench.core.op_log import OpRecord
from kernbench.engine import records
from kernbench.engine.engine import GraphEngine
from kernbench.numerics import compute
from kernbench.triton_emu.tl_context import TLContext as Tl


@pytest.fixture
def engine() -> GraphEngine:
    return GraphEngine(two_cubes())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[OpRecord]:
    """The records that have been made as objects."""
    found: list[OpRecord] = []

    def make(*args: Any, **more: Any) -> OpRecord:
        found.append(OpRecord(*args, **more))
        return found[-1]

    monkeypatch.setattr(records, "OpRecord", make)
    return found


def doubled(x: int, *, tl: Tl) -> None:
    a = tl.load(x, 4, "f32")
    tl.device_print("a", a)
    tl.store(x, a + a)


def put(engine: GraphEngine) -> Placed:
    return place(engine, np.arange(4, dtype=np.float32))


def test_a_replay_makes_no_record(engine: GraphEngine, made: list[OpRecord]) -> None:
    x = put(engine)
    launch(engine, doubled, x)
    assert fetch(engine, x).tolist() == [0, 2, 4, 6]
    assert engine.phase2_stats.ops == 5
    assert not made


def test_a_record_is_made_once_and_alone(engine: GraphEngine, made: list[OpRecord]) -> None:
    launch(engine, doubled, put(engine))
    last = engine.op_log[-1]
    assert (last.seq, last.kind, len(made)) == (len(engine.op_log) - 1, "dma_write", 1)
    assert engine.op_log.records[-1] is last
    assert len(made) == len(engine.op_log)


@pytest.mark.parametrize("looked", [False, True], ids=["seen after", "seen before"])
def test_what_is_printed_is_in_the_log_and_is_filled_by_the_replay(engine: GraphEngine, looked: bool) -> None:
    launch(engine, doubled, put(engine))
    if looked:
        (before,) = (each for each in engine.op_log if each.name == "print")
        assert before.data is None
    assert [line.text for line in engine.printed()] == ["a [0. 1. 2. 3.]"]
    (sample,) = (each for each in engine.op_log if each.name == "print")
    assert isinstance(sample.data, np.ndarray)
    assert (sample.kind, sample.data.tolist()) == ("memory_read", [0, 1, 2, 3])
    assert sample.t_start_ps == sample.t_read_ps == sample.t_commit_ps == sample.t_end_ps
    assert sample.component == "sip0.cube0.pe0.pe_cpu"
    if looked:
        assert sample is before


def test_a_write_of_the_host_is_listed_after_it_was_replayed(engine: GraphEngine) -> None:
    x = put(engine)
    fetch(engine, x)
    (write,) = (each for each in engine.op_log if each.kind == "memory_write")
    assert (write.output.address, write.data) == (x.pa, None)  # type: ignore[union-attr]


def test_a_replay_that_fails_names_the_record_and_the_next_one_goes_on(
    engine: GraphEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = put(engine)
    launch(engine, doubled, x)

    def fail(*_: object) -> None:
        raise ValueError("no sums today")

    with monkeypatch.context() as patched:
        patched.setitem(compute.RULES, "math", fail)  # type: ignore[misc]
        line = doubled.__code__.co_firstlineno + 3
        named = rf"record \d+ \(math add\) on sip0\.cube0\.pe0\.pe_math of kernel 'doubled', line {line}: no sums today"
        with pytest.raises(RunError, match=named):
            engine.replay()
    done = engine.phase2_stats.ops
    launch(engine, doubled, x)
    assert fetch(engine, x).tolist() == [0, 2, 4, 6]
    assert engine.phase2_stats.ops == done + 4
