"""Turns of memories, what they began after, and the transfers that they held up."""

from __future__ import annotations

import numpy as np

from engine_support import place, two_cubes
from ideal_memory import IDEAL
from kernbench.core.log import KIND, By, Kind
from kernbench.core.observed import Carries, Observed
from kernbench.messages.requests import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from observed import log_of, logged

KIB = 1024


def reads(nbytes: int, pes: tuple[int, ...]) -> tuple[Observed, list[int]]:
    """PEs of a cube read one slice at once; the numbers of their replies."""
    engine = logged(two_cubes(*IDEAL))
    pa = PhysAddr.hbm_addr(0, 0, 0, 0).encode()
    for pe in pes:
        engine.submit(PeDmaMsg(pe=(0, 0, pe), pa=pa, nbytes=nbytes))
    engine.drain()
    seen = log_of(engine).seen
    return seen.tables, np.flatnonzero(seen.transfers.what == Carries.REPLY).tolist()


def test_a_read_is_held_by_the_turn_that_supplies_it() -> None:
    """64 KiB come at 204.8 GB/s from the slice, and could go at 256: 320 instead of 256 ns."""
    tables, (reply,) = reads(64 * KIB, (0,))
    row = tables.transfer(reply)
    turn = tables.turn(row.held_by)
    assert (turn.of, turn.start, turn.end) == (row.cause, row.start, row.start + 320_000)
    assert row.end - row.start - row.zero_load == 320_000 - 256_000
    request = tables.transfer(turn.cause)
    assert (turn.by, turn.start) == (By.LINK, request.end + 30_000)  # the time of an access


def test_turns_follow_each_other() -> None:
    """Two that read one slice take turns, whose causes lead back to the request of the first."""
    tables, replies = reads(64 * KIB, (0, 1))
    last = max((tables.transfer(each) for each in replies), key=lambda row: row.end)
    turn, of = tables.turn(last.held_by), []
    while turn.by == By.BANK:
        of.append(turn.of)
        before = tables.turn(turn.cause)
        assert before.end == turn.start
        turn = before
    assert set(of) == {tables.transfer(each).cause for each in replies}
    assert turn.start == tables.transfer(turn.cause).end + 30_000


def test_what_answers_is_a_part_of_what_asked() -> None:
    engine = logged(two_cubes())
    place(engine, np.zeros(64, np.float32))
    seen = log_of(engine).seen
    (asked,) = seen.asks.tolist()
    answer, row = seen.answer(asked), seen.row_of(asked)
    assert answer is not None
    assert (answer.what, answer.of) == (Carries.ACK, row)
    assert engine.machine.log.rows[row + KIND] == Kind.MEMORY_WRITE
    assert seen.asked_by[row] == [asked]
