"""Which commands of a kernel wait for others: the pure part of a PE's scoreboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kernbench.core.log import BY_OPERAND, NONE, ROOT, Cause, Row
from kernbench.messages.commands import Command

AtEnd: TypeAlias = Callable[[Command, Row], None]
Start: TypeAlias = Callable[[Command, Cause], None]


class Scoreboard:
    """Issued commands; one starts when all it uses are done. ``under_way``: commands that are not done, by serial.

    A command is entered there when the kernel asks for it; what the commands use is held until they are taken out here.
    ``start(command, cause)`` is called for one that had to wait and can go; when one is done, its entry of ``at_end``,
    if it has one, and then ``on_completion()``, if set. ``now``: the row after whose end the PE does what it does.

    ``writes``: how many of them write memory and have not yet. When none is left, ``on_written(row)`` is called once,
    if set, with the row of the last one.
    """

    __slots__ = (
        "_missing",
        "_start",
        "_waiters",
        "at_end",
        "now",
        "on_completion",
        "on_written",
        "under_way",
        "writes",
    )

    def __init__(self, under_way: dict[int, tuple[Command, Any]], start: Start) -> None:
        self.under_way = under_way
        self.now: Row = NONE
        self.on_completion: Callable[[], None] | None = None
        self.at_end: dict[int, AtEnd] = {}
        self.writes = 0
        self.on_written: Callable[[Row], None] | None = None
        self._start = start
        self._missing: dict[int, int] = {}
        self._waiters: dict[int, list[Command]] = {}

    def __len__(self) -> int:
        return len(self.under_way)

    def __contains__(self, serial: int) -> bool:
        return serial in self.under_way

    def issue(self, command: Command, waits: int = 0) -> bool:
        """Issue a command, to be released as often as ``waits`` says; True when it can start at once."""
        missing = waits
        under_way, waiters = self.under_way, self._waiters
        for serial in command.after:
            if serial in under_way:
                waiting = waiters.get(serial)
                if waiting is None:
                    waiters[serial] = [command]
                else:
                    waiting.append(command)
                missing += 1
        if missing:
            self._missing[command.serial] = missing
        return not missing

    def waiters(self, serial: int) -> Sequence[Command]:
        """The issued commands that use the result of one under way."""
        return self._waiters.get(serial, ())

    def enter(self, command: Command) -> None:
        """A command is under way whatever the kernel makes of it: what it uses may be entered later."""
        self.under_way[command.serial] = (command, ())

    def withdraw(self, serial: int) -> None:
        """A command that the kernel has asked for is not issued after all."""
        self.under_way.pop(serial, None)

    def complete(self, command: Command, row: Row) -> None:
        """``command`` is done as ``row`` has ended; what waited for it alone starts, in program order."""
        self.now = row
        serial = command.serial
        del self.under_way[serial]
        waiters = self._waiters.pop(serial, None)
        if waiters is not None:
            self._start_ready(waiters, (row, BY_OPERAND) if row >= 0 else ROOT)
        at_end = self.at_end.pop(serial, None)
        if at_end is not None:
            at_end(command, row)
        on_completion = self.on_completion
        if on_completion is not None:
            on_completion()

    def written(self, row: Row) -> None:
        """What one of the ``writes``, that of ``row``, writes is in memory."""
        self.writes -= 1
        if not self.writes and self.on_written is not None:
            told, self.on_written = self.on_written, None
            told(row)

    def release(self, command: Command, cause: Cause) -> None:
        """One of the things beside commands that ``command`` waits for is there."""
        self._start_ready((command,), cause)

    def _start_ready(self, waiters: Sequence[Command], cause: Cause) -> None:
        missing, ready = self._missing, []
        for waiter in waiters:
            left = missing[waiter.serial] - 1
            if left:
                missing[waiter.serial] = left
            else:
                del missing[waiter.serial]
                ready.append(waiter)
        start = self._start
        for waiter in ready:
            start(waiter, cause)
