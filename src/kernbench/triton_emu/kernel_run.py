"""One kernel on one PE, from its first request to its end: what a PE drives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kernbench.messages.commands import KernelRequest
from kernbench.messages.requests import LaunchArg, TensorArg
from kernbench.policy.address.scratch import ScratchAllocator
from kernbench.triton_emu.issuer import CommandMaker
from kernbench.triton_emu.kernel_runner import KernelRunner
from kernbench.triton_emu.schedule_run import ScheduleRun
from kernbench.triton_emu.schedules import ScheduledKernel
from kernbench.triton_emu.source import KernelSite
from kernbench.triton_emu.tl_context import TLContext


class KernelRun:
    """``function(*args, tl=…, **kwargs)`` on the PE ``site``; of a tensor argument the kernel sees the address.

    ``resume(answer=None)`` runs the kernel until its next request, None when it has returned, and raises what the
    kernel raises; ``answer`` is that to its last request, a ``Slot`` for a receive. ``under_way``: its commands, by
    serial, with what each uses; each is to be taken out once its result is in memory.
    """

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
        seen: dict[str, object] = {name: _seen(value) for name, value in kwargs.items()}
        self._runner = KernelRunner(function, tuple(map(_seen, args)), seen, file)
        self._maker = CommandMaker(site, scratch)
        seen["tl"] = TLContext(self._maker, self._runner)
        self.resume = self._runner.resume
        self.under_way = self._maker.under_way

    def completed(self, serial: int) -> None:
        """The command ``serial`` is done."""
        self.under_way.pop(serial, None)

    def only_read_by(self, reader: int, serial: int) -> bool:
        """Whether what the command ``serial`` makes is for the command ``reader`` alone; both are under way."""
        return self._maker.only_read_by(reader, serial)

    def throw(self, error: Exception) -> KernelRequest | None:
        """Like ``resume``, but the call that the kernel waits in raises ``error``."""
        return self._runner.throw(error)

    def place(self, line: int) -> str:
        """What errors call a line."""
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
) -> KernelRun | ScheduleRun:
    """A kernel on a PE: a schedule as its steps, all others as Python."""
    if isinstance(function, ScheduledKernel):
        return ScheduleRun(function, (*args, *kwargs.values()), site, scratch)
    return KernelRun(function, args, kwargs, site, scratch, file)


def _seen(arg: LaunchArg) -> int | float | str | bool | tuple[int, ...] | None:
    return arg.va if isinstance(arg, TensorArg) else arg
