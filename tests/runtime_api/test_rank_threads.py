"""Ranks in threads: who may call the machine, what a rank has of its own, and how a rank that never waits ends."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path

import pytest

from kernbench.common.errors import LimitReached, RunStopped, SecondThreadError
from kernbench.result.simulation import wall_limit
from kernbench.runtime_api.multiprocessing import Multiprocessing, SpawnException
from kernbench.runtime_api.rank_process import PYTHON, RankProcess
from kernbench.runtime_api.ranks import ThreadRunner

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.fixture
def spawn(torch, monkeypatch):
    monkeypatch.setattr(Multiprocessing, "runner", ThreadRunner)
    return torch.multiprocessing.spawn


def test_each_rank_has_a_thread_and_one_runs_at_a_time(torch, spawn):
    running, names = [], []

    def program(rank):
        for _ in range(20):
            running.append(rank)
            assert len(running) == 1
            names.append(threading.current_thread().name)
            running.remove(rank)
            torch.zeros(2)

    spawn(program, nprocs=3)
    assert {*names} == {"rank 0", "rank 1", "rank 2"}


def test_only_the_thread_of_the_running_rank_may_call_the_machine(torch, spawn):
    raised = []

    def program(rank):
        torch.zeros(2)
        if rank == 1:
            context = copy_context()

            def call():
                try:
                    context.run(torch.zeros, 2)
                except SecondThreadError as error:
                    raised.append(str(error))

            thread = threading.Thread(target=call, name="helper")
            thread.start()
            thread.join()
        torch.zeros(2)

    spawn(program, nprocs=2)
    assert len(raised) == 1
    assert f"{HERE}:" in raised[0]
    assert "thread 'helper' calls" in raised[0]
    assert "rank 1 runs in thread 'rank 1': only that thread may" in raised[0]


def loop(rank):
    while rank:
        time.sleep(0.001)


def swallow(rank):
    while rank:
        with suppress(BaseException):
            while True:
                time.sleep(0.001)


@pytest.mark.parametrize("program", [loop, swallow])
@pytest.mark.parametrize("in_main", [True, False], ids=["main thread", "another thread"])
def test_a_rank_that_loops_for_ever_is_stopped_by_the_limit_of_real_time(fresh, monkeypatch, program, in_main):
    monkeypatch.setattr(Multiprocessing, "runner", ThreadRunner)
    raised = []

    def run():
        with pytest.raises(RunStopped) as caught, fresh() as torch, wall_limit(0.1, lambda: LimitReached("too long")):
            torch.multiprocessing.spawn(program, nprocs=2)
        raised.append(caught)

    if in_main:
        run()
    else:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    (caught,) = raised
    assert str(caught.value.why) == "too long"
    assert program.__name__ in [entry.name for entry in caught.traceback]  # where the rank was


def test_an_interrupt_ends_a_rank_that_loops_for_ever(torch, spawn):
    left = []

    def program(rank):
        try:
            loop(rank)
        finally:
            left.append(rank)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            spawn(program, nprocs=2)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert left == [0, 1]
    assert torch.zeros(2).numpy().tolist() == [0, 0]


def test_what_a_process_has_belongs_to_each_rank(torch, tmp_path, monkeypatch):
    (tmp_path / "of_rank.py").write_text("counts = []\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OF_PROGRAM", "1")
    process = RankProcess(variables=lambda rank: {"RANK": str(rank)}, folder=tmp_path)
    argv, hook, results = sys.argv, sys.excepthook, {}
    random.seed(0)
    expected = [random.random() for _ in range(4)]
    random.seed(0)

    def program(rank):
        import of_rank  # noqa: PLC0415

        random.seed(rank)
        numbers = []
        sys.argv, sys.excepthook = [str(rank)], lambda *_: None
        os.environ["OF_PROGRAM"] = f"rank {rank}"
        for _ in range(4):
            torch.zeros(2)
            numbers.append(random.random())
            of_rank.counts.append(rank)
            assert (sys.argv, os.environ["RANK"], os.environ["OF_PROGRAM"]) == ([str(rank)], str(rank), f"rank {rank}")
            assert torch.ahbm.current_device() == rank
        results[rank] = numbers, sys.modules["of_rank"].counts

    torch.multiprocessing.spawn(program, nprocs=2, process=process)
    assert results[0] == (expected, [0] * 4)
    assert results[1][0] != expected
    assert results[1][1] == [1] * 4
    assert (sys.argv, sys.excepthook, os.environ["OF_PROGRAM"]) == (argv, hook, "1")
    assert [random.random() for _ in range(4)] == expected  # of the program
    assert "RANK" not in os.environ
    assert "of_rank" not in sys.modules


def test_the_program_has_its_process_while_ranks_wait(torch):
    process = RankProcess(variables=lambda rank: {"RANK": str(rank)}, generators=(PYTHON,))

    def program(rank):
        torch.zeros(2)
        if rank:
            raise ValueError(os.environ["RANK"])
        for _ in range(3):
            torch.zeros(2)

    context = torch.multiprocessing.spawn(program, nprocs=2, join=False, process=process)
    torch.zeros(4)
    assert "RANK" not in os.environ
    with pytest.raises(SpawnException, match="rank 1 failed: ValueError: 1"):
        context.join()
    assert "RANK" not in os.environ


def test_more_ranks_than_sips_are_refused(torch):
    with pytest.raises(Exception, match=r"3 ranks for 2 SIPs: .* --set system\.sips\.count=3"):
        torch.multiprocessing.spawn(print, nprocs=3, process=RankProcess())
