"""Where schedules that are played as a whole meet the records of all others: their loads, their stores, their ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from kernbench.common.ids import pe_part
from kernbench.core.op_log import OpLog, OpRecord
from kernbench.messages.operands import Operand
from kernbench.numerics.schedule_groups import Group, disturbed, groups_of
from kernbench.numerics.schedule_plays import Play, Plays
from kernbench.numerics.schedule_replay import Array, Place, Team


class End(NamedTuple):
    """The end of ``play``: what it leaves behind."""

    place: Place
    play: Play

    @property
    def arrays(self) -> list[tuple[Operand, Array]]:
        """What then lies in its scratch and its slots, in the order in which it came there."""
        return self.place.team.left_by(self.play)

    @property
    def stats(self) -> tuple[int, int]:
        """How many commands were none of memory, and the bytes of their results.

        Messages in slots outside of the TCM were read into scratch.
        """
        program = self.play.program
        n, nbytes = program.inside
        if self.play.rings_in == "tcm":
            return n, nbytes
        return n + program.brought_in[0], nbytes + program.brought_in[1]


class ScheduleRecords:
    """Takes ``plays`` when they are replayed for the first time: those that can be are played as a whole.

    All others are replayed record by record: what is not over then, what has failed or exchanges messages with a
    kernel, and what others touch in its scratch or its slots.
    """

    def __init__(self, plays: Plays) -> None:
        self._plays = plays
        self._n_ends = 0
        self.moves: dict[int, tuple[Place, int]] = {}  # where, and which value, by the number of the record
        self.ends: dict[int, End] = {}

    def since(self, log: OpLog, seq: int, waiting: Iterable[OpRecord]) -> tuple[list[OpRecord], list[OpRecord]]:
        """The records of ``log`` from ``seq`` on that are to be replayed, and those of the ends of schedules.

        ``waiting``: earlier ones that are not replayed yet.
        """
        plays = self._plays.take()
        groups = groups_of(plays) if plays else []
        others = tuple(waiting) if groups else ()
        while groups:
            launches = {launch for group in groups for launch in group.launches}
            fresh = log.since(seq, launches)
            moves = _moves(log, [record for record in fresh if record.launch_id in launches])
            lost = disturbed(groups, chain(others, fresh)) | _incomplete(groups, moves)
            if not lost:
                return fresh, [end for group in groups for end in self._begin(group, moves)]
            groups = [group for group in groups if lost.isdisjoint(group.launches)]
        return log.since(seq), []

    def _begin(self, group: Group, moves: Moves) -> list[OpRecord]:
        """Have a group played; returns the records of its ends."""
        team, ends = Team(group), []
        for play, place in team.places.items():
            loads, stores = moves[_dma_of(play)]
            for record, value in (*zip(loads, play.program.loads, strict=True), *zip(stores, play.stored, strict=True)):
                self.moves[record.seq] = place, value
            self._n_ends += 1
            end = OpRecord(-self._n_ends, pe_part(*play.pe, "pe_cpu"), "math", play.start_ps, -1, play.end_ps)
            end.launch_id, end.name = play.launch, "schedule"
            self.ends[end.seq] = End(place, play)
            ends.append(end)
        return ends


Moves = dict[tuple[int, str], tuple[list[OpRecord], list[OpRecord]]]
"""Loads and stores by launch and DMA, each in the order of the program"""


def _dma_of(play: Play) -> tuple[int, str]:
    return play.launch, pe_part(*play.pe, "pe_dma")


def _moves(log: OpLog, records: Iterable[OpRecord]) -> Moves:
    found: Moves = defaultdict(lambda: ([], []))
    for record in records:
        found[record.launch_id, record.component][record.kind == "dma_write"].append(record)
    for loads, stores in found.values():
        loads.sort(key=log.serial_of)
        stores.sort(key=log.serial_of)
    return found


def _incomplete(groups: Sequence[Group], moves: Moves) -> set[int]:
    """The launches some of whose loads and stores have no record: those of no element."""
    return {
        play.launch
        for group in groups
        for play in group.plays
        if [*map(len, moves[_dma_of(play)])] != [len(play.program.loads), len(play.stored)]
    }
