"""The scoreboard of a PE: it tracks which commands of a kernel wait for others, independent of time and engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kernbench.core.log import BY_OPERAND, NONE, ROOT, Cause, Row
from kernbench.messages.commands import Command

AtEnd: TypeAlias = Callable[[Command, Row], None]
Start: TypeAlias = Callable[[Command, Cause], None]


class Scoreboard:
    """The issued commands of a kernel. A command starts when all commands that it uses are done.

    ``under_way``: the commands that are not done, by serial. A command is entered when the kernel requests it. Its
    operands stay allocated until the command is removed from ``under_way``.

    ``start(command, cause)`` is called for a command that had to wait and can start. When a command is done, its
    function in ``at_end`` is called, if there is one, and then ``on_completion()``, if set. ``now``: the row whose end
    the next action of the PE follows.

    ``writes``: the number of commands with an incomplete write to memory. When this number drops to 0,
    ``on_written(row)`` is called once, if set, with the row of the last write.
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

    def issue(self, command: Command, waits: int = 0) -> bool:
        """Issue a command that needs ``waits`` calls of ``release``; return True if the command can start at once."""
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
        """Return the issued commands that use the result of a command in flight."""
        return self._waiters.get(serial, ())

    def enter(self, command: Command) -> None:
        """Enter a command as not done, even if the kernel never uses its result. Its operands may be entered later."""
        self.under_way[command.serial] = (command, ())

    def withdraw(self, serial: int) -> None:
        """Remove a command that the kernel has requested but that will not be issued."""
        self.under_way.pop(serial, None)

    def complete(self, command: Command, row: Row) -> None:
        """Retire ``command``, done at the end of ``row``; start the commands that only waited for it, in order."""
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

    def note_written(self, row: Row) -> None:
        """Count down ``writes``: the write of ``row`` is in memory."""
        self.writes -= 1
        if not self.writes and self.on_written is not None:
            on_written, self.on_written = self.on_written, None
            on_written(row)

    def release(self, command: Command, cause: Cause) -> None:
        """End one of the ``waits`` with which ``command`` was issued."""
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
