"""Which commands of a kernel are under way, and which wait for others: the pure part of a PE's scoreboard."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.messages.commands import PeCommand


class Scoreboard:
    """Issued commands in program order; one starts when all it uses are done."""

    __slots__ = ("_missing", "_under_way", "_waiters")

    def __init__(self) -> None:
        self._under_way: dict[int, PeCommand] = {}
        self._missing: dict[int, int] = {}
        self._waiters: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def __contains__(self, serial: int) -> bool:
        return serial in self._under_way

    def issue(self, command: PeCommand) -> bool:
        """Enter a command; True when it can start at once."""
        missing = 0
        for serial in command.after:
            if serial in self._under_way:
                self._waiters.setdefault(serial, []).append(command.serial)
                missing += 1
        self._under_way[command.serial] = command
        if missing:
            self._missing[command.serial] = missing
        return not missing

    def complete(self, serial: int) -> Sequence[PeCommand]:
        """A command is done; those that can start now, in program order."""
        del self._under_way[serial]
        waiters = self._waiters.pop(serial, None)
        if waiters is None:
            return ()
        ready: list[PeCommand] = []
        for waiter in waiters:
            self._missing[waiter] -= 1
            if not self._missing[waiter]:
                del self._missing[waiter]
                ready.append(self._under_way[waiter])
        return ready

    def under_way(self) -> tuple[PeCommand, ...]:
        """What is not done, in program order."""
        return tuple(self._under_way.values())
