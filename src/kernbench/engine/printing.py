"""What kernels print: texts at once, arrays once phase 2 has replayed up to the time of the call."""

from __future__ import annotations

from math import prod

import numpy as np

from kernbench.common.ids import cube_part, pe_part
from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.engine.hooks import Hooks, Printed
from kernbench.engine.recorder import Recorder
from kernbench.engine.records import RecordViews, Sample
from kernbench.messages.operands import Operand
from kernbench.messages.requests import PeCoord


@value
class PrintedLine:
    """A line that PE ``pe`` printed at ``time_ns``, from ``line`` of its kernel."""

    time_ns: float
    pe: PeCoord
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.time_ns:.3f} ns {cube_part(self.pe[0], self.pe[1], f'pe{self.pe[2]}')}: {self.text}"


class Printer:
    """Keeps what kernels print; with data, every array is a sample in the op-log that the replay fills."""

    def __init__(self, op_log: RecordViews, hooks: Hooks, recorder: Recorder) -> None:
        self._log = op_log
        self._recorder = recorder
        self.unread_values = 0  # of arrays that were printed, and not shown yet
        self._kept: list[tuple[Printed, tuple[str | Sample, ...]]] = []
        hooks.printed.subscribe(self._keep)

    def lines(self) -> tuple[PrintedLine, ...]:
        """All lines so far, in the order of their times; to be asked after a replay up to now."""
        self.unread_values = 0
        return tuple(
            PrintedLine(ps_to_ns(event.time_ps), event.pe, event.line, " ".join(map(_text, parts)))
            for event, parts in self._kept
        )

    def _keep(self, event: Printed) -> None:
        self._kept.append((event, tuple(self._part(event, part) for part in event.parts)))

    def _part(self, event: Printed, part: Operand | str) -> str | Sample:
        if isinstance(part, str):
            return part
        if not self._recorder.keep_data:
            return _form(part)
        self.unread_values += prod(part.shape)
        source = Operand("tcm", event.pe, part.address, part.nbytes, part.shape, part.dtype)
        return self._log.sample(Sample(event.time_ps, source, pe_part(*event.pe, "pe_cpu"), event.line))


def _text(part: str | Sample) -> str:
    if isinstance(part, str):
        return part
    if part.array is None:  # keeping stopped before anybody looked
        return _form(part.operand)
    return np.array2string(part.array, threshold=64, precision=6)


def _form(array: Operand) -> str:
    """What is said of an array whose values nobody has."""
    return f"{array.dtype}{list(array.shape)}"
