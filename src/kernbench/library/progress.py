"""Progress of runs and sweeps, and its display in a terminal, in a notebook and elsewhere."""

from __future__ import annotations

import html
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

from kernbench.common.late import late
from kernbench.common.units import format_ns, format_size
from kernbench.common.values import value

if TYPE_CHECKING:
    from kernbench.engine.engine import GraphEngine
    from kernbench.runtime_api.operators import MemberCalls, OperatorTallies

LINE_EVERY_S = 5.0
LOOK_EVERY_S = 0.5
MOST_NAMES = 3
RICH = "rich.progress"
_BYTES_OF_MAXRSS = 1 if sys.platform == "darwin" else 1024


class ProgressState(Protocol):
    """The progress of work, as text and as a share of the total; the share is None if the total is unknown."""

    @property
    def share(self) -> float | None:
        """The finished share, from 0 to 1."""


@value(kw_only=True)
class RunProgress:
    """The progress of a run.

    ``requests``: submitted requests, of which ``requests_done`` are finished; ``passed``: launches that passed.
    ``launches``: names of the launches in flight. ``operators``: finished operators of a PyTorch program; ``members``:
    calls of its list of modules. ``memory_bytes``: peak memory of the process. ``limit_s``: limit of real time.
    """

    bench: str
    elapsed_s: float
    sim_ns: float
    events: int
    requests: int
    requests_done: int
    passed: int
    launches: Mapping[str, int]
    operators: int
    members: MemberCalls | None
    memory_bytes: int
    limit_s: float | None

    @property
    def events_per_s(self) -> float:
        """Events per second since the start of the run."""
        return self.events / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def share(self) -> None:
        """None: the total work of a program is unknown."""

    def __str__(self) -> str:
        if not self.events:
            return f"simulating {self.bench}" + (
                "" if self.limit_s is None else f", for at most {self.limit_s:g} s of real time (--max-wall-s)"
            )
        names = [f"{name} × {count}" if count > 1 else name for name, count in self.launches.items()]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        under_way = f", {', '.join(names[:MOST_NAMES])}{more}" if names else ""
        passed = f" ({self.passed:,} passed)" if self.passed else ""
        done = f"{self.requests_done:,} of {self.requests:,} requests done{passed}{under_way}"
        if self.members is not None:
            done = f"{self.members}, {done}"
        elif self.operators:
            done = f"{self.operators:,} operators called, {done}"
        pace = f"{self.events_per_s:,.0f} events/s"
        return f"{self.bench}: {format_ns(self.sim_ns)} simulated, {done}, {pace}, {format_size(self.memory_bytes)}"


@value
class StepProgress:
    """The progress of work in steps. Step number ``at``, counted from 0, runs now. Its name is ``name``."""

    name: str
    at: int
    total: int

    @property
    def share(self) -> float | None:
        """The share of finished steps; None for work of a single step."""
        return self.at / self.total if self.total > 1 else None

    def __str__(self) -> str:
        return f"[{self.at + 1}/{self.total}] {self.name}" if self.total > 1 else self.name


OnProgress: TypeAlias = Callable[[RunProgress], None]


class ProgressWatch:
    """A context manager that polls an engine from a separate thread, so that it does not slow down the run.

    An error of ``on_progress`` ends the watcher and is raised at the end of the run.
    """

    def __init__(
        self, bench: str, on_progress: OnProgress, limit_s: float | None = None, every_s: float = LOOK_EVERY_S
    ) -> None:
        self.engine: GraphEngine | None = None
        self.operators: OperatorTallies | None = None
        self._limit_s = limit_s
        self._bench, self._tell, self._every_s = bench, on_progress, every_s
        self._began = time.monotonic()
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        if self._error is None:
            try:
                self._tell(self._progress())
            except Exception as error:
                self._error = error

    def _progress(self) -> RunProgress:
        engine, operators = self.engine, self.operators
        handles = [] if engine is None else list(engine.handles)
        return RunProgress(
            bench=self._bench,
            elapsed_s=time.monotonic() - self._began,
            sim_ns=0.0 if engine is None else engine.now,
            events=0 if engine is None else engine.n_events,
            requests=len(handles),
            requests_done=sum(each.done for each in handles),
            passed=0 if engine is None else len(engine.machine.passed.launches),
            launches=Counter([] if engine is None else [launch.title for launch in engine.launches_in_flight]),
            operators=0 if operators is None else operators.calls,
            members=None if operators is None else operators.members,
            memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_OF_MAXRSS,
            limit_s=self._limit_s,
        )

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if error is None:
            self._look()
        if isinstance(self._tell, ProgressDisplay):
            self._tell.close()
        if error is None and self._error is not None:
            raise self._error


BAR_WIDTH, BESIDE_TEXT = 40, 14
"""Width in characters of the bar, and of the other columns beside the text: spinner, time, blanks"""


class ProgressDisplay:
    """A progress display: a bar in a terminal and in a notebook, a line every 5 s elsewhere. A context manager.

    Call the display with a state, such as the argument of ``on_progress``. ``say``: function that prints a line.
    """

    def __init__(self, say: Callable[[str], None] | None = None, console: Any = None) -> None:
        self._say = say or _print_line
        self._console = console
        self._shown_s = float("-inf")
        self._last = ""
        self._bar: Any = None
        self._task: Any = None
        self._handle: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, state: ProgressState) -> None:
        """Show a state."""
        if _in_notebook():
            self._show_in_notebook(state)
        elif sys.stderr.isatty():
            self._show_in_terminal(state)
        else:
            now = time.monotonic()
            if now - self._shown_s >= LINE_EVERY_S or (state.share is not None and state.share >= 1):
                self._shown_s = now
                if str(state) != self._last:
                    self._say(str(state))
                self._last = str(state)

    def _show_in_terminal(self, state: ProgressState) -> None:
        if self._bar is None:
            rich = {name: late(RICH, name) for name in ("Progress", "SpinnerColumn", "TextColumn", "BarColumn")}
            columns = [rich["SpinnerColumn"](), rich["TextColumn"]("{task.description}", markup=False)]
            columns += [rich["BarColumn"](bar_width=BAR_WIDTH)] if state.share is not None else []
            elapsed = late(RICH, "TimeElapsedColumn")()
            self._bar = rich["Progress"](*columns, elapsed, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=1.0)
            self._bar.start()
        room = self._bar.console.width - BESIDE_TEXT - (0 if state.share is None else BAR_WIDTH)
        self._bar.update(self._task, description=_shorten(_plain(str(state)), room), completed=state.share or 0.0)

    def _show_in_notebook(self, state: ProgressState) -> None:
        value = "" if state.share is None else f' value="{state.share:.4f}"'
        shown = late("IPython.display", "HTML")(f"<progress{value}></progress> {html.escape(str(state))}")
        if self._handle is None:
            self._handle = late("IPython.display", "display")(shown, display_id=True)
        elif self._handle is not None:
            self._handle.update(shown)


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: max(0, most - 1)]}…"


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _in_notebook() -> bool:
    """Return True in a notebook kernel, which shows HTML."""
    return "ipykernel" in sys.modules and "IPython" in sys.modules
