"""The memory of a kernel's handles, and how long each piece of it is held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Home(Protocol):
    """Where a buffer's bytes go back to."""

    def free(self, addr: int, /) -> None:
        """Take back the buffer at ``addr``."""


class Scratch(Home, Protocol):
    """The part of a PE's TCM that kernels may fill; addresses are encoded physical ones."""

    @property
    def free_bytes(self) -> int:
        """Bytes that nothing holds."""

    def alloc(self, nbytes: int, label: str, /) -> int:
        """Address of ``nbytes`` for ``label``; AllocationError when no free stretch is long enough."""

    def live(self) -> Sequence[tuple[str, int]]:
        """Label and bytes of everything that is allocated."""


class Buffer:
    """The bytes of one handle: how many commands under way use them, and which of those writes them (-1: none).

    ``dropped``: its handle is gone, so nobody can give it to another command.
    """

    __slots__ = ("address", "dropped", "home", "lifetimes", "producer", "uses")

    def __init__(self, address: int, home: Home, lifetimes: Lifetimes) -> None:
        self.address = address
        self.home = home
        self.lifetimes = lifetimes
        self.uses = 0
        self.producer = -1
        self.dropped = False
        lifetimes.live[self] = None

    def drop(self) -> None:
        """Its handle is gone."""
        if self.dropped:
            return
        self.dropped = True
        lifetimes = self.lifetimes
        if self.uses:
            lifetimes.releasing += 1
        else:
            del lifetimes.live[self]
            self.home.free(self.address)


class Lifetimes:
    """Gives a buffer back once its handle is dropped and every command that reads or writes it is done.

    So whoever gets the bytes next meets neither a read that is late nor a write that is. ``live``: buffers that have
    not gone back; ``releasing``: how many of them do as soon as commands under way are done; ``under_way``: the buffers
    that each command uses, and is counted in.
    """

    __slots__ = ("live", "releasing", "under_way")

    def __init__(self) -> None:
        self.live: dict[Buffer, None] = {}
        self.releasing = 0
        self.under_way: dict[int, tuple[Buffer, ...]] = {}

    def began(self, serial: int, buffers: tuple[Buffer, ...]) -> None:
        """The command ``serial`` is under way and uses ``buffers``, one of them maybe several times."""
        self.under_way[serial] = buffers
        for buffer in buffers:
            buffer.uses += 1

    def completed(self, serial: int) -> None:
        """The command ``serial`` is done."""
        for buffer in self.under_way.pop(serial, ()):
            uses = buffer.uses = buffer.uses - 1
            if buffer.producer == serial:
                buffer.producer = -1
            if not uses and buffer.dropped:
                self.releasing -= 1
                del self.live[buffer]
                buffer.home.free(buffer.address)

    def finish(self) -> None:
        """The kernel is over and has no handles: everything goes back, what commands still use when they are done."""
        for buffer in tuple(self.live):
            buffer.drop()
