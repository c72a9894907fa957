"""One program on one PE, from its first request to its end: what a PE drives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kernbench.messages.commands import Command, KernelRequest
from kernbench.messages.requests import LaunchArg, TensorArg
from kernbench.policy.address.free_list import ScratchAllocator
from kernbench.triton_emu.handles import Allocation
from kernbench.triton_emu.issuer import CommandMaker
from kernbench.triton_emu.kernel_runner import KernelRunner
from kernbench.triton_emu.schedule_run import ScheduleRun
from kernbench.triton_emu.schedules import ScheduledKernel
from kernbench.triton_emu.source import KernelSite
from kernbench.triton_emu.tl_context import TLContext


class ProgramRun(Protocol):
    """One execution of a program on a PE: a kernel, or a schedule.

    ``resume(answer)`` runs it until its next request, None when there is none, and raises what the program raises;
    ``answer`` is that to its last request, a ``Slot`` for a receive, None for the first. ``under_way``: its
    commands, by serial, with what each uses; each is to be taken out once its result is in memory.
    """

    @property
    def resume(self) -> Callable[[Any], KernelRequest | None]:
        """Run the program until its next request."""

    @property
    def under_way(self) -> dict[int, tuple[Command, tuple[Allocation, ...]]]:
        """The commands that are not done."""

    def throw(self, error: Exception) -> KernelRequest | None:
        """Like ``resume``, but what the program waits in raises ``error``."""

    def completed(self, serial: int) -> None:
        """Let go of what the command ``serial`` uses: it is done."""

    def only_read_by(self, reader: int, serial: int) -> bool:
        """Return True when what the command ``serial`` makes is for ``reader`` alone; both are under way."""

    def place(self, line: int) -> str:
        """Return what errors call a line of the program."""

    def close(self) -> None:
        """End the program, if it has not ended, and give back its memory; what commands use, when they are done."""


class KernelRun:
    """``function(*args, tl=…, **kwargs)`` on the PE ``site``, as a ``ProgramRun``; it sees the addresses of tensors."""

    __slots__ = ("_maker", "_runner", "resume", "under_way")

    def __init__(
        self,
        function: Callable[..., object],
        args: tuple[LaunchArg, ...],
        kwargs: Mapping[str, LaunchArg],
        site: KernelSite,
        scratch: ScratchAllocator,
        file: str | None = None,
    ) -> None:
        """``file``: as ``KernelRunner`` says."""
        seen: dict[str, object] = {name: _argument_of(value) for name, value in kwargs.items()}
        self._runner = KernelRunner(function, tuple(map(_argument_of, args)), seen, file)
        self._maker = CommandMaker(site, scratch)
        seen["tl"] = TLContext(self._maker, self._runner)
        self.resume = self._runner.resume
        self.under_way = self._maker.under_way

    def completed(self, serial: int) -> None:
        """Let go of what the command ``serial`` uses: it is done."""
        self.under_way.pop(serial, None)

    def only_read_by(self, reader: int, serial: int) -> bool:
        """Return True when what the command ``serial`` makes is for ``reader`` alone; both are under way."""
        return self._maker.only_read_by(reader, serial)

    def throw(self, error: Exception) -> KernelRequest | None:
        """Like ``resume``, but the call that the kernel waits in raises ``error``."""
        return self._runner.throw(error)

    def place(self, line: int) -> str:
        """Return what errors call a line."""
        return f"line {line}"

    def close(self) -> None:
        """End the kernel, if it has not ended, and give back its memory; what commands use, when they are done."""
        before = set(self.under_way)
        self._runner.close()
        for serial in self.under_way.keys() - before:  # asked for while it was being ended: nobody will do that
            del self.under_way[serial]
        self._maker.finish()


def begin_run(
    function: Callable[..., object],
    args: tuple[LaunchArg, ...],
    kwargs: Mapping[str, LaunchArg],
    site: KernelSite,
    scratch: ScratchAllocator,
    file: str | None = None,
) -> ProgramRun:
    """Return a run of a kernel on a PE: of a schedule as its steps, of all others as Python."""
    if isinstance(function, ScheduledKernel):
        return ScheduleRun(function, (*args, *kwargs.values()), site, scratch)
    return KernelRun(function, args, kwargs, site, scratch, file)


def _argument_of(arg: LaunchArg) -> int | float | str | bool | tuple[int, ...] | None:
    return arg.va if isinstance(arg, TensorArg) else arg
