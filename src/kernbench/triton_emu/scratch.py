"""The memory of a kernel's handles, and how long each piece of it is held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(slots=True, eq=False)
class Buffer:
    """The bytes of one handle: how many commands under way use them, and which of those writes them (-1: none)."""

    address: int
    home: Home
    lifetimes: Lifetimes
    uses: int = 0
    producer: int = -1
    dropped: bool = False

    def drop(self) -> None:
        """Its handle is gone: nobody can give it to another command."""
        self.lifetimes.drop(self)


class Lifetimes:
    """Gives a buffer back once its handle is dropped and every command that reads or writes it is done.

    So whoever gets the bytes next meets neither a read that is late nor a write that is.
    """

    __slots__ = ("_live", "_releasing", "_under_way")

    def __init__(self) -> None:
        self._live: dict[Buffer, None] = {}
        self._under_way: dict[int, tuple[Buffer, ...]] = {}
        self._releasing = 0

    @property
    def releasing(self) -> int:
        """Buffers that go back as soon as commands under way are done."""
        return self._releasing

    def hold(self, address: int, home: Home) -> Buffer:
        """The buffer of a new handle at ``address``, which goes back to ``home``."""
        buffer = Buffer(address, home, self)
        self._live[buffer] = None
        return buffer

    def began(self, serial: int, buffers: tuple[Buffer, ...]) -> None:
        """The command ``serial`` is under way and uses ``buffers``, one of them maybe several times."""
        self._under_way[serial] = buffers
        for buffer in buffers:
            buffer.uses += 1

    def completed(self, serial: int) -> None:
        """The command ``serial`` is done."""
        for buffer in self._under_way.pop(serial, ()):
            buffer.uses -= 1
            if buffer.producer == serial:
                buffer.producer = -1
            if buffer.dropped and not buffer.uses:
                self._releasing -= 1
                self._release(buffer)

    def drop(self, buffer: Buffer) -> None:
        """The handle of ``buffer`` is gone."""
        if buffer.dropped:
            return
        buffer.dropped = True
        if buffer.uses:
            self._releasing += 1
        else:
            self._release(buffer)

    def finish(self) -> None:
        """The kernel is over and has no handles: everything goes back, what commands still use when they are done."""
        for buffer in tuple(self._live):
            self.drop(buffer)

    def _release(self, buffer: Buffer) -> None:
        del self._live[buffer]
        buffer.home.free(buffer.address)
