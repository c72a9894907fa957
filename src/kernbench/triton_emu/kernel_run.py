"""The run of one program on one PE, from its first request to its end, as the PE drives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kernbench.messages.commands import Command, KernelRequest
from kernbench.messages.requests import LaunchArg, TensorArg
from kernbench.policy.address.free_list import ScratchAllocator
from kernbench.triton_emu.handles import Allocation
from kernbench.triton_emu.issuer import CommandMaker
from kernbench.triton_emu.kernel_runner import KernelRunner
from kernbench.triton_emu.repeats import RepeatedWork, Repeats
from kernbench.triton_emu.schedule_run import ScheduleRun
from kernbench.triton_emu.schedules import ScheduledKernel
from kernbench.triton_emu.source import KernelSite
from kernbench.triton_emu.tl_context import TLContext


class PeProgram(Protocol):
    """One execution of a program, a kernel or a schedule, on a PE.

    ``resume(answer)`` runs the program until its next request and returns the request, or None at the end; it raises
    the program's errors. ``answer`` answers the last request: a ``Slot`` for a receive, None at first. ``under_way``
    has the commands in flight by serial, with their handles; the PE removes each command once its result is in memory.
    """

    @property
    def resume(self) -> Callable[[Any], KernelRequest | None]:
        """The function that runs the program until its next request."""

    @property
    def under_way(self) -> dict[int, tuple[Command, tuple[Allocation, ...]]]:
        """The commands in flight."""

    def throw(self, error: Exception) -> KernelRequest | None:
        """Resume the program with ``error`` raised at its last request."""

    def completed(self, serial: int) -> None:
        """Drop the references of the complete command ``serial`` to its handles."""

    def only_read_by(self, reader: int, serial: int) -> bool:
        """Return True if only ``reader`` reads the result of the command ``serial``; both are in flight."""

    def place(self, line: int) -> str:
        """Return the text that names line ``line`` of the program in error messages."""

    def close(self) -> None:
        """End the program, if it has not ended, and free its memory; commands in flight free theirs at their end."""


class KernelRun:
    """A ``PeProgram`` of ``function(*args, tl=…, **kwargs)`` on the PE ``site``; tensors are passed as addresses."""

    __slots__ = ("_maker", "_runner", "resume", "under_way")

    def __init__(
        self,
        function: Callable[..., object],
        args: tuple[LaunchArg, ...],
        kwargs: Mapping[str, LaunchArg],
        site: KernelSite,
        scratch: ScratchAllocator,
        file: str | None = None,
        repeated: RepeatedWork | None = None,
    ) -> None:
        """Prepare the run; ``file`` is as in ``KernelRunner``. ``repeated``: work may be left out."""
        arguments: dict[str, object] = {name: _argument_of(value) for name, value in kwargs.items()}
        self._runner = KernelRunner(function, tuple(map(_argument_of, args)), arguments, file)
        self._maker = CommandMaker(site, scratch)
        arguments["tl"] = TLContext(self._maker, self._runner)
        self.resume = self._runner.resume
        self.under_way = self._maker.under_way
        if repeated is not None:
            self._maker.repeats = Repeats(repeated)

    def completed(self, serial: int) -> None:
        """Drop the references of the complete command ``serial`` to its handles."""
        self.under_way.pop(serial, None)

    def only_read_by(self, reader: int, serial: int) -> bool:
        """Return True if only ``reader`` reads the result of the command ``serial``; both are in flight."""
        return self._maker.only_read_by(reader, serial)

    def throw(self, error: Exception) -> KernelRequest | None:
        """Resume the kernel with ``error`` raised at its last call."""
        return self._runner.throw(error)

    def place(self, line: int) -> str:
        """Return the text for a line in errors."""
        return f"line {line}"

    def close(self) -> None:
        """End the kernel, if it has not ended, and free its memory; commands in flight free theirs at their end."""
        before = set(self.under_way)
        self._runner.close()
        for serial in self.under_way.keys() - before:  # requested during the end of the kernel: no PE executes them
            del self.under_way[serial]
        self._maker.finish()


def begin_run(
    function: Callable[..., object],
    args: tuple[LaunchArg, ...],
    kwargs: Mapping[str, LaunchArg],
    site: KernelSite,
    scratch: ScratchAllocator,
    file: str | None = None,
    repeated: RepeatedWork | None = None,
) -> PeProgram:
    """Return a run of a kernel on a PE: the steps of a schedule, or a Python function.

    ``repeated``: the work of its launch, of which repeated work may be left out.
    """
    if isinstance(function, ScheduledKernel):
        return ScheduleRun(function, (*args, *kwargs.values()), site, scratch)
    return KernelRun(function, args, kwargs, site, scratch, file, repeated)


def _argument_of(arg: LaunchArg) -> int | float | str | bool | tuple[int, ...] | None:
    return arg.va if isinstance(arg, TensorArg) else arg
