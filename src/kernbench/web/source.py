"""Make a page from a machine with or without a run, or read one that is there already; make it anew when
what it was made from changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from threading import Thread
from typing import Protocol

from kernbench.ccl.loading import load_ccl_config
from kernbench.common.data_policy import UNSAID, DataOptions
from kernbench.common.errors import InputError, KernbenchError
from kernbench.common.files import read_input
from kernbench.common.values import state, value
from kernbench.runtime_api.bench_registry import load_bench
from kernbench.runtime_api.bench_runner import BenchResult
from kernbench.runtime_api.types import DeviceSelector, resolve_device
from kernbench.topology.builder import resolve_topology, topology_file
from kernbench.web.observer import observe_run
from kernbench.web.page import MARK, Page, PageServer, make_page

BENCH_PREFIX = "bench."
_PYTHON = ".py"


class PageSource(Protocol):
    """Gives a page, and says which files it depends on."""

    @property
    def files(self) -> tuple[Path, ...]:
        """List the files to look at for changes."""

    def content(self) -> str:
        """The page as it is now. KernbenchError when there is none."""


@value
class Made:
    """A page, and how the run that it shows went; None: it shows none."""

    page: Page
    result: BenchResult | None


@value
class RunSource:
    """A machine, and a bench that runs on it; ``overrides`` are ``path=value`` texts, as ``--set`` takes them.

    ``ccl``: the file that configures collectives; None: ./ccl.yaml, else the packaged one. ``values``: what the run
    keeps to compute values; ``verify``: comparisons are evaluated.
    """

    bench: str | None = None
    topology: str | None = None
    overrides: tuple[str, ...] = ()
    device: str = "all"
    ccl: str | None = None
    values: DataOptions = UNSAID
    verify: bool = False

    @property
    def files(self) -> tuple[Path, ...]:
        """The topology, and the bench's file and that of collectives when the user named them."""
        before, python, _ = (self.bench or "").rpartition(_PYTHON)
        named = [before + python] if python else []
        named += [] if self.ccl is None else [self.ccl]
        return (Path(topology_file(self.topology)), *map(Path, named))

    def make(self) -> Made:
        """Run, and make the page. InputError for a machine, bench, device, parameters or collectives of no use."""
        params = tuple(text for text in self.overrides if text.startswith(BENCH_PREFIX))
        machine = resolve_topology(self.topology, [text for text in self.overrides if text not in params])
        if self.bench is None:
            if params:
                raise InputError(f"--set {params[0]}: there is no bench; say which with --bench NAME")
            if self.ccl is not None:
                raise InputError(f"--ccl {self.ccl}: there is no bench; say which with --bench NAME")
            if self.verify or self.values != UNSAID:
                raise InputError("there is no bench, so no value to say anything of; say which with --bench NAME")
            return Made(make_page(machine), None)
        bench, device = load_bench(self.bench), DeviceSelector(self.device)
        resolve_device(device, machine.spec)
        if self.ccl is not None:
            load_ccl_config(self.ccl)
        data = self.values.policy(verify=self.verify, bench=bench.data)
        run = observe_run(machine, bench, device, params, self.ccl, data=data, verify=self.verify)
        return Made(make_page(machine, run), run.result)

    def content(self) -> str:
        """The page of a new run."""
        return self.make().page.content


@value
class FileSource:
    """A page that was made before."""

    path: Path

    @property
    def files(self) -> tuple[Path, ...]:
        """The page itself."""
        return (self.path,)

    def content(self) -> str:
        """Read the file. InputError when it cannot be read, and when that is no page, or a part of one."""
        try:
            found = read_input(self.path, most=None).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: cannot be read: it is not UTF-8 text") from error
        if MARK not in found or not found.rstrip().endswith("</html>"):
            raise InputError(f"{self.path}: not a whole page of kernbench web; that writes one with --out {self.path}")
        return found


PAUSE_S = 0.5

Stamp = tuple[int, int] | None


def _stamp(path: Path) -> Stamp:
    """Return the time and size of a file, which change when it does; None while there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@state
class Watcher:
    """Puts a new page on a server's shelf when a file of its source has changed."""

    source: PageSource
    server: PageServer
    _seen: list[Stamp] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seen = self._stamps()

    def look(self) -> str | None:
        """None when nothing has changed; else what came of making a new page: nothing to say, or an error."""
        now = self._stamps()
        if now == self._seen:
            return None
        self._seen = now
        try:
            self.server.shelf.put(self.source.content())
        except KernbenchError as error:
            self.server.shelf.complain(str(error))
            return str(error)
        return ""

    def _stamps(self) -> list[Stamp]:
        return [_stamp(path) for path in self.source.files]


def serve(watcher: Watcher, tell: Callable[[str], None]) -> None:
    """Serve until interrupted, and ``tell`` of every change."""
    with watcher.server as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            while True:
                found = watcher.look()
                if found is not None:
                    tell(found or "changed: browsers show the new page")
                time.sleep(PAUSE_S)
        finally:
            server.shutdown()
