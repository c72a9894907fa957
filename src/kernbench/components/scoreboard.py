"""Which commands of a kernel are under way, and which wait for others: the pure part of a PE's scoreboard."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.messages.commands import PeCommand


@dataclass(slots=True)
class Entry:
    """A command that has been issued and is not done: how many it still waits for, and who waits for it."""

    command: PeCommand
    missing: int
    waiters: list[int]


class Scoreboard:
    """Issued commands in program order; one starts when all it uses are done."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, serial: int) -> bool:
        """Whether a command is under way."""
        return serial in self._entries

    def issue(self, command: PeCommand) -> bool:
        """Enter a command; True when it can start at once."""
        pending = [s for s in command.after if s in self._entries]
        self._entries[command.serial] = Entry(command, len(pending), [])
        for serial in pending:
            self._entries[serial].waiters.append(command.serial)
        return not pending

    def complete(self, serial: int) -> list[PeCommand]:
        """A command is done; those that can start now, in program order."""
        ready: list[PeCommand] = []
        for waiter in sorted(self._entries.pop(serial).waiters):
            entry = self._entries[waiter]
            entry.missing -= 1
            if not entry.missing:
                ready.append(entry.command)
        return ready

    def under_way(self) -> tuple[Entry, ...]:
        """What is not done, in program order."""
        return tuple(self._entries.values())
