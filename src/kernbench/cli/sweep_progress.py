"""How far a sweep is, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kernbench.cli.console import say, stderr
from kernbench.evaluation.sweep_driver import Progress as SweepState

LINE_EVERY_S = 5.0


class SweepProgress:
    """Shows progress while it is entered; the bar goes away at the end."""

    def __init__(self) -> None:
        console = stderr()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = None if self._bar is None else self._bar.add_task("points", total=None)
        self._began = time.monotonic()
        self._said = -LINE_EVERY_S

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, state: SweepState) -> None:
        """The sweep is as far as ``state`` says."""
        if self._bar is not None and self._task is not None:
            failed = f", {state.failed} failed" if state.failed else ""
            self._bar.update(self._task, description=f"points{failed}", total=state.points, completed=state.finished)
            return
        elapsed = time.monotonic() - self._began
        if elapsed - self._said >= LINE_EVERY_S or state.finished == state.points:
            self._said = elapsed
            say(progress_line(state, elapsed))


def progress_line(state: SweepState, elapsed_s: float) -> str:
    """``[ 40/200] 2 failed, 12 s, about 48 s left``."""
    width = len(str(state.points))
    done = state.finished - state.found
    parts = [f"{state.failed} failed"] if state.failed else []
    parts.append(f"{elapsed_s:.0f} s")
    if done and state.finished < state.points:
        parts.append(f"about {elapsed_s / done * (state.points - state.finished):.0f} s left")
    elif state.found and not done:
        parts.append(f"{state.found} were finished before")
    return f"[{state.finished:>{width}}/{state.points}] {', '.join(parts)}"
