"""Thinking parts: SimPy processes that take messages from an inbox, one after another, and act on them.

The clock calls functions of parts that move bytes. A part that decides is written as a loop, like its hardware::

    class Slow(ThinkingPart):
        def run(self):
            while True:
                message = yield self.inbox.get()
                yield self.wait_ns(5)
                ...
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from simpy import Environment, Event, Process, Store, Timeout
from simpy.events import ConditionValue
from simpy.resources.resource import Request
from simpy.resources.store import StoreGet

from kernbench.common.errors import UnsupportedError
from kernbench.common.ids import pe_part
from kernbench.common.units import ns_to_ps
from kernbench.core.log import COMMIT, END, LAUNCH, PARENT, ROOT, WHAT, By, Cause, Kind, Row
from kernbench.engine.machine import Component, Machine
from kernbench.messages.control import ControlMessage, CubeOrder, PartOrder, PeOrder, PeReport, Report, SipOrder
from kernbench.messages.fabric import QueueArrival, QueueData, ReadReply, ReadRequest, WriteAck, WriteData
from kernbench.topology.graph import Node
from kernbench.transport import Transfer

Behaviour: TypeAlias = Generator[Event, Any, Any]
"""The generator of a process, which yields the events that the process waits for"""
Question: TypeAlias = PartOrder | SipOrder | CubeOrder | PeOrder | ReadRequest | WriteData
"""A message that needs an answer"""

_ORDERS = frozenset((PartOrder, SipOrder, CubeOrder, PeOrder))
_ACCESSES = frozenset((ReadRequest, WriteData))
_NUMBERS = (int, float, np.number)
MOST_WAITS = 300_000
"""A part with this number of successive waits, without a message received or sent, counts as an endless loop"""


class Take(StoreGet):
    """The event that takes a message from an inbox: the first for which ``fits`` returns True; None: any message."""

    def __init__(self, inbox: Inbox, env: Environment, fits: Callable[[Any], bool] | None) -> None:
        # SimPy's __init__ is not called: an inbox is unbounded, so no process waits to put a message into it.
        self.env = env
        self.callbacks = []
        self.resource = inbox
        self.fits = fits


class Inbox(Store):
    """The messages that a part has not taken yet, by arrival. ``items`` is the list; a part may read or sort it.

    ``yield inbox.get()`` takes the first message, ``yield inbox.get(lambda message: ...)`` the first for which the
    function returns True.
    """

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self.env = env

    def get(self, fits: Callable[[Any], bool] | None = None) -> Take:
        """Return an event whose value is the message that it takes. ``cancel`` the event to stop waiting."""
        event = Take(self, self.env, fits)
        if not self.items or not self._give(event):
            self.get_queue.append(event)
        return event

    def deliver(self, message: object) -> None:
        """Append a message, or give it, by a single event, to the first process that waits for such a message."""
        for at, event in enumerate(self.get_queue):
            if event.fits is None or event.fits(message):
                del self.get_queue[at]
                event.succeed(message)
                return
        self.items.append(message)

    def _give(self, event: Take) -> bool:
        """Let ``event`` take the first message that fits; return True if there is one."""
        for at, message in enumerate(self.items):
            if event.fits is None or event.fits(message):
                del self.items[at]
                event.succeed(message)
                return True
        return False

    def _do_get(self, event: Any) -> bool:
        """Let ``event`` take a message, after a ``put``. Return True, so that SimPy also tries the next ``get``."""
        self._give(event)
        return True


class Delivery(NamedTuple):
    """A delivered message, the part that sent it, and its row in the log (-1: no row)."""

    message: object
    sender: str
    row: Row


class ThinkingPart(Component):
    """A part whose behaviour is the SimPy process ``run``.

    - ``inbox``: the delivered messages; ``yield self.inbox.get()`` takes one.
    - ``env``: the SimPy environment, for ``simpy.Resource`` and the like. Its time is in ps (``wait_ns`` takes ns).
    - ``random``: random numbers that are the same in every run.
    - ``cause``: the row of the log after which the part acts, and the rule. While the part handles a message, this row
      is the message's row.
    - ``waits``: the number of waits since the part last received or sent a message.
    - ``queued_ps``: the time that the acting process has waited for SimPy resources of the part.

    ``run`` starts when the part is constructed, and again after a reset that follows a failure. Its first lines should
    therefore set the fields that it uses. At equal times a thinking part acts after everything that moves bytes. An
    error in ``run`` becomes an error that names part, time and line, and all requests in flight fail with that error.
    """

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.env = machine.clock
        self.inbox = Inbox(self.env)
        self.cause: Cause = ROOT
        self.queued_ps = 0
        self._processes: dict[Process, Behaviour] = {}
        self._n_alive = 0
        self._delivered: dict[int, Delivery] = {}  # messages in the inbox, by identity
        self._unanswered: dict[Hashable, Delivery] = {}
        self.waits = 0

    # --- for the author of a part -------------------------------------------------------------------------------------

    def run(self) -> Behaviour:
        """Run the part: a generator that yields the events that it waits for, usually in an endless loop."""
        raise NotImplementedError(f"{type(self).__name__} has no run(), which defines the part's behaviour")

    def wait_ns(self, ns: float) -> Timeout:
        """Return an event ``ns`` from now, rounded to whole ps. Raises UnsupportedError if ``ns`` is no time."""
        time_ns: object = ns
        if not isinstance(time_ns, _NUMBERS) or not 0 <= time_ns < inf:
            raise UnsupportedError(f"wait_ns({ns!r}): a time is a number of ns, at least 0 and finite")
        return Timeout(self.env, ns_to_ps(ns))

    def process(self, behaviour: Behaviour) -> Process:
        """Start and return another process of this part, beside ``run``; yield the process to wait for its end.

        A reset ends the process.

        Raises UnsupportedError if ``behaviour`` is no generator.
        """
        if not isinstance(behaviour, Generator):
            raise UnsupportedError(f"a process is a generator, not {_show(behaviour)}: it has to yield events")
        self._processes = {process: driven for process, driven in self._processes.items() if process.is_alive}
        driven = self._drive(behaviour, self.cause)
        new_process = Process(self.env, driven)
        self._processes[new_process] = driven
        self._n_alive += 1
        return new_process

    def tell(self, dst: str, message: ControlMessage) -> None:
        """Send a message of the control path, a header, to another part."""
        self._act()
        if isinstance(message, Report):
            self._unanswered.pop(message.request_id, None)
        self.waits = 0
        self.machine.send_control(self.node.id, dst, message, self.cause)

    def send(self, dst: str, nbytes: int, message: object, channel: str = "") -> Transfer:
        """Send any other message, of ``nbytes``. Messages of one ``channel`` leave one after another."""
        self.waits = 0
        return self.machine.send(self.node.id, dst, nbytes, message, channel)

    def accept_within(self, question: Question, message: Question) -> None:
        """Note an order that a delivered ``message`` contains, so that the part can answer it."""
        self._unanswered[_key(question)] = self._unanswered[_key(message)]._replace(message=question)

    def answer(self, question: Question, *, pes: tuple[PeReport, ...] = (), error: Exception | None = None) -> None:
        """Answer a message that needs an answer.

        The answer to an order is a report with ``pes`` and, if the order failed, an ``error``. The answer to a read is
        the bytes, the answer to a write an acknowledgement. A message of a queue is a write too, but its answer
        notifies the receiving PE. Raises UnsupportedError if no component has sent this message to the part, or if the
        part has already answered.
        """
        if error is not None and not isinstance(error, Exception):
            raise UnsupportedError(f"answer(error={_show(error)}): give an exception, as in error=ValueError(...)")
        delivery = self._unanswered.pop(_key(question), None)
        if delivery is None:
            raise UnsupportedError(f"no component waits for an answer to {_show(question)} of {self.node.id}")
        recorder, now = self.machine.recorder, self.clock.time
        if isinstance(question, ReadRequest):
            recorder.accessed(question.op, now)
            reply = ReadReply(op=question.op, part=question.part)
            self.send(question.requester, question.access.nbytes, reply, "read")
        elif isinstance(question, QueueData):
            self.machine.log.rows[question.row + COMMIT] = now
            pe_dma = pe_part(*question.pe, "pe_dma")
            self.send(pe_dma, self.machine.header_bytes, QueueArrival(data=question), "arrival")
        elif isinstance(question, WriteData):
            recorder.committed(question.op, now)
            self.send(
                question.requester, self.machine.header_bytes, WriteAck(op=question.op, part=question.part), "ack"
            )
        else:
            self.tell(delivery.sender, Report(request_id=question.request_id, pes=pes, error=error))

    def blocked(self) -> tuple[str, ...]:
        """Return a line for each message that this part has not answered."""
        return tuple(map(self.standing, self._unanswered.values()))

    def standing(self, delivery: Delivery) -> str:
        """Return a text about a message without an answer; an override may name what the answer waits for."""
        is_taken = id(delivery.message) not in self._delivered
        return f"has not {'answered' if is_taken else 'taken'} {_show(delivery.message)} from {delivery.sender}"

    # --- for the machine ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start ``run``."""
        behaviour: object = self.run()
        if not isinstance(behaviour, Generator):
            raise UnsupportedError(
                f"run() of {self.node.impl} is no generator: it has to yield the events it waits for"
            )
        self.process(behaviour)

    def receive(self, message: object, transfer: Transfer) -> None:
        """Put a message into the inbox. Raises UnsupportedError if all processes of the part have ended."""
        delivery = Delivery(message, transfer.route.links[0].src, transfer.row)
        self._delivered[id(message)] = delivery
        key = _key(message)
        if key is not None:
            self._unanswered[key] = delivery
        self.waits = 0
        self.n_accesses += 1
        self.inbox.deliver(message)
        if not self._n_alive:
            self._check_taken()

    def reset(self) -> None:
        """Restart ``run``. Only unanswered orders survive, except those of abandoned requests."""
        for driven in self._processes.values():
            driven.close()
        self._processes = {}
        self._n_alive = 0
        self.inbox = Inbox(self.env)
        self.random.seed(self.node.id)
        self.cause = ROOT
        self._delivered = {}
        self._unanswered = {
            key: delivery
            for key, delivery in self._unanswered.items()
            if delivery.message.__class__ in _ORDERS and key not in self.machine.given_up
        }
        self.waits = 0
        self.begin()

    def _drive(self, behaviour: Behaviour, cause: Cause) -> Behaviour:
        """Run ``behaviour``. The cause of its actions is the message that it took last; before the first, ``cause``."""
        step: Callable[[Any], Event] = behaviour.send
        value: Any = None
        queued_ps = 0
        while True:
            self.cause, self.queued_ps = cause, queued_ps
            try:
                event = step(value)
            except StopIteration as end:
                self._n_alive -= 1
                self._check_taken()
                return end.value
            cause = self.cause
            self.waits += 1
            if not isinstance(event, Event) or event.env is not self.env or self.waits > MOST_WAITS:
                step, value = behaviour.throw, UnsupportedError(self._problem(event))
                continue
            taking, since_ps = event.__class__ is Take, self.clock.time
            if taking and cause[0] >= 0:
                self._close_message()
            try:
                value = yield event
                step = behaviour.send
            except GeneratorExit:
                behaviour.close()
                raise
            except BaseException as failure:  # the awaited event failed
                step, value = behaviour.throw, failure
                continue
            if event.__class__ is Timeout:
                self.busy_ps += self.clock.time - since_ps
            elif isinstance(event, Request):
                queued_ps += self.clock.time - since_ps
            if taking or value.__class__ is ConditionValue:
                cause = self._cause_of(value, cause)

    def _problem(self, event: object) -> str:
        """Return a text with the reason why a process cannot wait for ``event``, which it has yielded."""
        if not isinstance(event, Event):
            wanted = "self.inbox.get(), self.wait_ns(5), a request of a simpy.Resource, self.process(...)"
            return f"it yielded {_show(event)}, which is no event to wait for: yield {wanted}"
        if event.env is not self.env:
            return "it yielded an event of another SimPy environment: make it with self.env"
        return (
            f"it has waited {MOST_WAITS:,} times in a row, and no message came or went: a part that never rests "
            "keeps the run from ending. Wait for a message, and compute the changes since the last message"
        )

    def _cause_of(self, value: object, cause: Cause) -> Cause:
        """Return the cause of a process that continues with ``value``: the row of a taken message, else ``cause``."""
        for message in value.values() if isinstance(value, ConditionValue) else (value,):
            delivery = self._delivered.pop(id(message), None)
            if delivery is not None:
                cause = delivery.row, By.ORDER
        return cause

    def _close_message(self) -> None:
        """Close the row of the message that the process took last."""
        row, log = self.cause[0], self.machine.log
        if row >= 0 > log.rows[row + END]:
            log.close(row, self.clock.time)

    def _act(self) -> None:
        """Open a row for the work of the process since its last send, before it sends again."""
        self._close_message()
        row, log, now = self.cause[0], self.machine.log, self.clock.time
        if row >= 0 and log.rows[row + END] < now and not log.is_folded(row):
            subject, launch, parent, end = (log.rows[row + column] for column in (WHAT, LAUNCH, PARENT, END))
            part = log.part(self.node.id)
            row = log.open(part, Kind.CONTROL, end, self.cause, subject=subject, launch=launch, parent=parent, end=now)
            self.cause = row, By.ORDER

    def _check_taken(self) -> None:
        """Raise UnsupportedError if messages are left and no process is alive."""
        if self.inbox.items and not self._n_alive:
            message = _show(self.inbox.items[0])
            raise UnsupportedError(
                f"{message} arrived after run() had ended: take messages in an endless loop, "
                "with 'while True: message = yield self.inbox.get()'"
            )


def _key(message: Any) -> Hashable | None:
    """Return the key of a message that needs an answer; None for other messages."""
    kind = message.__class__
    if kind in _ORDERS:
        return int(message.request_id)
    return (message.op, message.part) if kind in _ACCESSES or isinstance(message, QueueData) else None


def _show(value: object) -> str:
    """Return a value as text for an error: by its type, except plain values."""
    if isinstance(value, PartOrder | SipOrder | CubeOrder | PeOrder | Report):
        return f"the {type(value).__name__} of request {value.request_id}"
    plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if plain else f"a {type(value).__name__}"
