"""Progress of work in steps, on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from kernbench.cli.console import printable, say, stderr


class Steps:
    """Progress of work in steps with names: a bar on a terminal, a line for each step elsewhere."""

    def __init__(self, total: int, bar: Progress | None) -> None:
        self._total = total
        self._bar = bar
        self._task = bar.add_task("", total=total) if bar is not None else None
        self._n_begun = 0

    def begin(self, name: str) -> None:
        """The next step is under way."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=printable(name), completed=self._n_begun)
        else:
            which = f"[{self._n_begun + 1}/{self._total}] " if self._total > 1 else ""
            say(f"{which}{name}")
        self._n_begun += 1


@contextmanager
def show_steps(total: int) -> Iterator[Steps]:
    """Show the progress of ``total`` steps on stderr; a bar goes away when they are done."""
    console = stderr()
    if not console.is_terminal:
        yield Steps(total, None)
        return
    count = (BarColumn(), MofNCompleteColumn()) if total > 1 else ()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), *count, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield Steps(total, bar)
