"""Places of a kernel: its PE, and the line of the user's source that made a call."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType, TracebackType

from kernbench.common.dtypes import DType
from kernbench.common.errors import KernelError
from kernbench.common.values import value
from kernbench.messages.requests import KernelLaunchMsg, KernelRef, PeCoord
from kernbench.triton_emu.block_sizes import BlockLimits
from kernbench.triton_emu.schedules import Op, ScheduledKernel, text_of_step


@value(kw_only=True)
class KernelSite:
    """The PE that runs a kernel, the numbers of participating PEs, cubes and SIPs, and the kernel.

    ``file`` is the source file of the kernel (``program_file(kernel)``). ``dot_dtypes`` are the operand types that the
    machine's GEMM unit supports. ``tcm`` is the range of physical addresses of the PE's TCM; None allows any address.
    ``blocks`` are the limits of products by blocks; None means no limits.
    """

    sip: int
    cube: int
    pe: int
    num_pes: int
    num_cubes: int
    num_sips: int
    kernel: str
    file: str
    dot_dtypes: tuple[DType, ...]
    tcm: range | None = None
    blocks: BlockLimits | None = None

    @property
    def ids(self) -> tuple[int, int, int]:
        """The PE in its cube, the cube in its SIP, and the SIP: the axes of ``program_id``."""
        return self.pe, self.cube, self.sip

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of participating PEs, cubes and SIPs: the axes of ``num_programs``."""
        return self.num_pes, self.num_cubes, self.num_sips

    def __str__(self) -> str:
        return f"PE {self.pe} of cube {self.cube} of SIP {self.sip}"


PROGRAM_FILE: ContextVar[str | None] = ContextVar("kernbench_program_file", default=None)
"""The source file of the user's program in a kernel of a front end; each kernel has its own context."""


@value
class Source:
    """A place in a source file; line 0 means no line."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def _here() -> str:
    return os.path.dirname(_here.__code__.co_filename) + os.sep


# The spelling of frames, which can differ from __file__.
_PACKAGE = _here()


def kernel_source(function: Callable[..., object]) -> Source:
    """Return the place in the source of ``function``, without decorators and partial application."""
    function = inspect.unwrap(function)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    if isinstance(function, ScheduledKernel):
        function = function.schedule
    if inspect.ismethod(function):
        function = function.__func__
    if isinstance(function, FunctionType):
        return Source(function.__code__.co_filename, function.__code__.co_firstlineno)
    return Source(f"<{type(function).__name__}>", 0)


def program_file(kernel: KernelRef) -> str:
    """Return the source file that the lines of ``kernel`` refer to."""
    return kernel.file or kernel_source(kernel.function).file


def call_line(file: str, frame: FrameType | None) -> int:
    """Return the line of the kernel's ``file`` that led to ``frame``, or else of the last call into this package."""
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    frame = frame or _user_frame()
    return frame.f_lineno if frame else 0


def kernel_error(message: str) -> KernelError:
    """Return a KernelError that begins with the file and line of the kernel's call into this package."""
    return KernelError(f"{call_place()}: {message}")


def call_place() -> Source:
    """Return the place of the innermost call into this package; for a front end, of the program that it runs."""
    frame = _user_frame()
    file = PROGRAM_FILE.get()
    inner = None if file is None else frame
    while inner is not None and inner.f_code.co_filename != file:
        inner = inner.f_back
    frame = inner or frame
    return Source(frame.f_code.co_filename, frame.f_lineno) if frame else Source("<kernbench>", 0)


def traceback_of_kernel(trace: TracebackType | None, file: str | None = None) -> TracebackType | None:
    """Return ``trace`` without the frames of this package before and after the kernel's frames.

    With ``file``, the program of a front end, the result runs from the first to the last frame of that file, if any.
    """
    if file is not None:
        links = [link for link in _links(trace) if link.tb_frame.f_code.co_filename == file]
        if links:
            links[-1].tb_next = None
            return links[0]
    while trace is not None and _is_ours(trace.tb_frame):
        trace = trace.tb_next
    last = trace
    while last is not None:
        if last.tb_next is not None and _is_ours(last.tb_next.tb_frame):
            last.tb_next = None
        last = last.tb_next
    return trace


def _links(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _user_frame() -> FrameType | None:
    # The frame of the caller: a frame that refers to itself would live until the next garbage collection.
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, public in all but name
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)


class ProgramText:
    """The program of ``launch``: ``file`` is its source, ``schedule`` its name if it is a schedule."""

    def __init__(self, launch: KernelLaunchMsg) -> None:
        function = launch.kernel.function
        self.file = program_file(launch.kernel)
        self.schedule = function.name if isinstance(function, ScheduledKernel) else None
        self.name = self.schedule or Path(self.file).name
        self.unit = "step" if self.schedule else "line"
        self._launch = launch
        self._steps: dict[PeCoord, Mapping[int, Op]] = {}

    def says(self, line: int, pes: Iterable[PeCoord]) -> str:
        """Return the source text of a line; for a schedule, the text of that step on each of ``pes``."""
        if self.schedule is None:
            return linecache.getline(self.file, line).strip()
        return " | ".join(dict.fromkeys(text_of_step(op) for pe in pes if (op := self._steps_of(pe).get(line))))

    def step(self, line: int, pe: PeCoord) -> str:
        """Return the text of a step of a schedule for errors."""
        says = self.says(line, (pe,))
        return f"step {line} ({says})" if says else f"step {line}"

    def _steps_of(self, pe: PeCoord) -> Mapping[int, Op]:
        steps = self._steps.get(pe)
        if steps is None:
            kernel, launch = self._launch.kernel.function, self._launch
            assert isinstance(kernel, ScheduledKernel)
            args = (*launch.args, *dict(launch.kwargs).values())[kernel.tensors :]
            ops = kernel.ops(args, pe[::-1], launch.counts)
            steps = self._steps[pe] = {op.line: op for op in reversed(ops)}  # the first of each step
        return steps
