"""Record of the queues in a run, from hooks: messages, waits of kernels, and the credits that end waits."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import field

from kernbench.common.values import state
from kernbench.core.clock import NEVER
from kernbench.core.log import LAUNCH, LINE, Row
from kernbench.engine.hooks import QueueEvent, QueueWaited, SlotReleased
from kernbench.engine.machine import Machine
from kernbench.messages.requests import PeCoord

MessageKey = tuple[PeCoord, str, int]
"""The PE that receives a message, its queue there, and the number in that queue"""
QueueKey = tuple[PeCoord, str]


@state(eq=False)
class QueueMessage:
    """A message with its ``row`` in the log: number ``sequence`` of queue ``direction`` of ``pe``.

    - ``pa``: the address of its slot
    - ``queue``: the queue of ``peer`` that it arrives in, at ``arrived_ps``
    - ``taken_ps``: the time when its kernel receives it
    - ``released_ps``: the time when its slot is free
    - ``posted``: its arrival ended a receive that had been posted
    - ``epoch``: the number of times that the queue has restarted

    Times are NEVER until the event occurs.
    """

    row: Row
    pe: PeCoord
    direction: str
    sequence: int
    nbytes: int
    peer: PeCoord
    pa: int
    sent_ps: int
    line: int
    kernel: str
    queue: str = ""
    arrived_ps: int = NEVER
    taken_ps: int = NEVER
    released_ps: int = NEVER
    posted: bool = False
    epoch: int = 0


@state
class QueueLog:
    """A log of queue events: ``watch`` subscribes to the hooks of queues.

    ``messages`` are stored by row, ``arrivals`` by receiving PE and time, ``credits`` by the sending end of the queue,
    ``released`` by queue end and time.
    """

    machine: Machine
    messages: dict[Row, QueueMessage] = field(default_factory=dict)
    arrivals: dict[tuple[PeCoord, int], list[QueueMessage]] = field(default_factory=dict)
    waits: list[QueueWaited] = field(default_factory=list)
    credits: dict[QueueKey, list[SlotReleased]] = field(default_factory=dict)
    released: dict[tuple[PeCoord, str, int], QueueMessage] = field(default_factory=dict)
    _posted: set[MessageKey] = field(default_factory=set)
    _epochs: dict[QueueKey, tuple[int, set[int]]] = field(default_factory=dict)
    _heads: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)
    _here: dict[MessageKey, QueueMessage] = field(default_factory=dict)

    def watch(self) -> None:
        """Subscribe to the hooks of queues."""
        self.machine.hooks.queue.subscribe(self._event)
        self.machine.hooks.queue_waited.subscribe(self.waits.append)
        self.machine.hooks.slot_released.subscribe(self._note_release)

    def _note_sent(self, event: QueueEvent) -> None:
        log, end = self.machine.log, (event.pe, event.direction)
        epoch, sent = self._epochs.get(end, (0, set()))
        if event.sequence in sent:  # the queue was installed again, or emptied
            epoch, sent = epoch + 1, set()
        sent.add(event.sequence)
        self._epochs[end] = epoch, sent
        self.messages[event.row] = QueueMessage(
            row=event.row,
            pe=event.pe,
            direction=event.direction,
            sequence=event.sequence,
            nbytes=event.nbytes,
            peer=event.peer,
            pa=event.pa,
            sent_ps=event.time_ps,
            line=log.rows[event.row + LINE],
            kernel=log.kernels.get(log.rows[event.row + LAUNCH], ""),
            epoch=epoch,
        )

    def credit_before(self, end: QueueKey, since_ps: int, until_ps: int) -> SlotReleased | None:
        """Return the release whose credit ended a wait: the first credit after ``since_ps`` and by ``until_ps``."""
        releases = self.credits.get(end, [])
        at = bisect_right(releases, since_ps, key=_credit_ps)
        if at == len(releases) or _credit_ps(releases[at]) > until_ps:
            at = bisect_left(releases, since_ps, key=_credit_ps)
        return releases[at] if at < len(releases) and _credit_ps(releases[at]) <= until_ps else None

    def _event(self, event: QueueEvent) -> None:
        key = (event.pe, event.direction, event.sequence)
        if event.kind == "send":
            self._note_sent(event)
        elif event.kind == "arrive":
            self._note_arrival(key, self.messages[event.row], event.time_ps)
        elif event.kind == "recv" and event.nbytes:
            message = self._here.get(key)
            if message is not None:
                message.taken_ps = event.time_ps
        elif event.kind == "recv":
            self._posted.add(key)

    def _note_arrival(self, key: MessageKey, message: QueueMessage, now: int) -> None:
        message.queue, message.arrived_ps = key[1], now
        self._here[key] = message
        self.arrivals.setdefault((key[0], now), []).append(message)
        self._move_head(message, now)

    def _move_head(self, message: QueueMessage, now: int) -> None:
        """Advance the head of a queue over messages that are available in order, and end their posted receives.

        A message that arrives early waits for the messages before it. Its receive waits as long.
        """
        end = (message.peer, message.queue)
        epoch, head = self._heads.get(end, (0, 0))
        head = head if epoch == message.epoch else 0
        while (arrived := self._here.get((*end, head))) is not None and arrived.epoch == message.epoch:
            if (*end, head) in self._posted:
                self._posted.remove((*end, head))
                arrived.taken_ps, message.posted = now, True
            head += 1
        self._heads[end] = message.epoch, head

    def _note_release(self, event: SlotReleased) -> None:
        message = self._here.pop((event.pe, event.direction, event.sequence), None)
        if message is not None:
            message.released_ps = event.time_ps
            self.released[event.pe, event.direction, event.time_ps] = message
        if event.credited_ps is not None:
            self.credits.setdefault((event.peer, event.peer_direction), []).append(event)


def _credit_ps(event: SlotReleased) -> int:
    assert event.credited_ps is not None
    return event.credited_ps
