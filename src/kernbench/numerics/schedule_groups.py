"""Which schedules phase 2 may compute for all PEs at once: groups whose messages go to each other and nobody else."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from operator import attrgetter

from kernbench.common.values import state, value
from kernbench.core.op_log import OpRecord
from kernbench.messages.operands import Operand
from kernbench.messages.requests import PeCoord
from kernbench.numerics.replay_extents import ExtentIndex, bounds
from kernbench.numerics.schedule_plays import Play

_START = attrgetter("start_ps")


@value
class Way:
    """All messages of queue ``direction`` of ``sender`` come to queue ``there`` of ``receiver``."""

    sender: Play
    direction: str
    receiver: Play
    there: str


@state(eq=False)
class Group:
    """Plays whose messages go to each other, all of some launches; ``ways`` are those of the messages."""

    plays: list[Play] = field(default_factory=list)
    ways: list[Way] = field(default_factory=list)

    @property
    def launches(self) -> set[int]:
        """The launches that it is."""
        return {play.launch for play in self.plays}


def groups_of(plays: Sequence[Play]) -> list[Group]:
    """The groups among ``plays`` that are over, without failure, and leave nothing in their queues."""
    launches: dict[int, list[Play]] = defaultdict(list)
    for play in plays:
        launches[play.launch].append(play)
    sound = {
        launch: len(each) == each[0].n_pes and all(play.end_ps >= 0 and not play.failed for play in each)
        for launch, each in launches.items()
    }
    ways, lost = _ways(plays)
    groups = {launch: Group(plays=each) for launch, each in launches.items()}
    for way in ways:
        one, other = groups[way.sender.launch], groups[way.receiver.launch]
        if one is not other:
            one.plays += other.plays
            one.ways += other.ways
            groups |= dict.fromkeys(other.launches, one)
        one.ways.append(way)
    bad = {launch for launch, is_sound in sound.items() if not is_sound} | lost
    return [group for group in dict.fromkeys(groups.values()) if bad.isdisjoint(group.launches)]


def _ways(plays: Sequence[Play]) -> tuple[list[Way], set[int]]:
    """The ways of all messages, and the launches some of whose messages come from elsewhere, go there or stay."""
    senders: dict[tuple[int | None, int], list[tuple[Play, str, int]]] = defaultdict(list)
    receivers: dict[tuple[int | None, int], list[tuple[Play, str, int]]] = defaultdict(list)
    for play in plays:
        program = play.program
        for direction, sent in program.sends.items():
            if direction in play.queues:  # else it has failed
                queue = play.queues[direction]
                senders[queue.peer_ring_pa, queue.sent].append((play, direction, len(sent)))
        for direction, taken in program.takes.items():
            if direction in play.queues:
                queue = play.queues[direction]
                receivers[queue.ring_pa, queue.taken].append((play, direction, len(taken)))
    ways: list[Way] = []
    lost: set[int] = set()
    for key in senders | receivers:
        # Queues that were installed again, or emptied, have the same key more than once, at both ends in one order.
        ends, others = senders[key], receivers[key]
        if [n for _, _, n in ends] != [n for _, _, n in others]:
            lost.update(play.launch for play, _, _ in ends + others)
            continue
        ways += [Way(a, out, b, into) for (a, out, _), (b, into, _) in zip(ends, others, strict=True)]
    return ways, lost


def disturbed(groups: Sequence[Group], records: Iterable[OpRecord]) -> set[int]:
    """The launches of ``groups`` whose scratch or slots ``records`` of others touch while they are in use."""
    index: ExtentIndex[PeCoord] = ExtentIndex()
    plays_on: dict[PeCoord, list[Play]] = defaultdict(list)  # one after another
    for play in sorted((play for group in groups for play in group.plays), key=_START):
        plays_on[play.pe].append(play)
        rings = [(q.ring_pa, q.n_slots * q.slot_size) for q in play.queues.values() if q.ring_pa is not None]
        for low, nbytes in (play.scratch, *rings):
            index.add(low, low + nbytes, play.pe)
    played = {launch for group in groups for launch in group.launches}
    found: set[int] = set()
    for record in records:
        if record.launch_id in played:
            continue
        for x in (*record.inputs, record.output, record.params.old):
            for low, high in bounds(x) if isinstance(x, Operand) else ():
                if not index.misses(low, high):
                    for pe in index.find(low, high):
                        found.update(play.launch for play in _during(plays_on[pe], record))
    return found


def _during(plays: Sequence[Play], record: OpRecord) -> Iterator[Play]:
    """Those of ``plays``, which come one after another, that ``record`` overlaps in time."""
    last = len(plays) if record.t_commit_ps < 0 else bisect_left(plays, record.t_commit_ps, key=_START)
    while last and plays[last - 1].end_ps > record.t_read_ps:
        last -= 1
        yield plays[last]
