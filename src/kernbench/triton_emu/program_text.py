"""What the lines of a program say: of a kernel its source; of a schedule, whose lines are its steps, what each does."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping
from pathlib import Path

from kernbench.messages.requests import KernelLaunchMsg, PeCoord
from kernbench.messages.schedules import Op
from kernbench.triton_emu.schedules import ScheduledKernel, text_of_step
from kernbench.triton_emu.source import program_file


class ProgramText:
    """The program of ``launch``. ``schedule``: its name, if it is one; ``file``: where it is written."""

    def __init__(self, launch: KernelLaunchMsg) -> None:
        function = launch.kernel.function
        self.file = program_file(launch.kernel)
        self.schedule = function.name if isinstance(function, ScheduledKernel) else None
        self.name = self.schedule or Path(self.file).name
        self.unit = "step" if self.schedule else "line"
        self._launch = launch
        self._steps: dict[PeCoord, Mapping[int, Op]] = {}

    def says(self, line: int, pes: Iterable[PeCoord]) -> str:
        """The source of a line; the step of that number on each of ``pes``, which may do different things."""
        if self.schedule is None:
            return linecache.getline(self.file, line).strip()
        return " | ".join(dict.fromkeys(text_of_step(op) for pe in pes if (op := self._steps_of(pe).get(line))))

    def step(self, line: int, pe: PeCoord) -> str:
        """What errors call a step of a schedule."""
        says = self.says(line, (pe,))
        return f"step {line} ({says})" if says else f"step {line}"

    def _steps_of(self, pe: PeCoord) -> Mapping[int, Op]:
        found = self._steps.get(pe)
        if found is None:
            kernel, launch = self._launch.kernel.function, self._launch
            assert isinstance(kernel, ScheduledKernel)
            args = (*launch.args, *dict(launch.kwargs).values())[kernel.tensors :]
            ops = kernel.ops(args, pe[::-1], launch.counts)
            found = self._steps[pe] = {op.line: op for op in reversed(ops)}  # the first of each step
        return found
