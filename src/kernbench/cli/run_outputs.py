"""Output files of a run: paths are checked before the run and written after it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kernbench.cli.console import say
from kernbench.common import __version__
from kernbench.common.errors import InputError
from kernbench.common.files import replacing, writable
from kernbench.common.late import late
from kernbench.common.values import value
from kernbench.library.runs import Run
from kernbench.observe.guard import guarded
from kernbench.observe.op_log_io import check_path, write_op_log
from kernbench.observe.roofline_chart import roofline_charts
from kernbench.observe.trace_filter import EVERYTHING, LINKS, TraceFilter, parse_filter
from kernbench.runtime_api.run_request import OutputOptions
from kernbench.topology.builder import Topology

ROOFLINE = "kernbench.evaluation.roofline_figure"


@value(kw_only=True)
class RunFiles:
    """The files to write besides the report. ``keep`` filters the timeline."""

    op_log: Path | None = None
    trace: Path | None = None
    roofline: Path | None = None
    keep: TraceFilter = EVERYTHING

    @property
    def shows_links(self) -> bool:
        """True if a file contains the loads of links."""
        return self.trace is not None and self.keep.may_keep(LINKS)

    def write(self, run: Run) -> None:
        """Write the files, each with the configuration of its machine beside it."""
        params = " ".join(f"{name}={choice}" for name, choice in run.params.items())
        title = f"bench {run.bench} {params}".rstrip()
        if self.op_log is not None:
            write_op_log(run.engine.op_log, self.op_log)
            _keep_machine(self.op_log, run, title)
        if self.trace is not None:
            run.trace(self.trace, keep=self.keep)
            _keep_machine(self.trace, run, title)
        if run.unexplained is not None and self.roofline is not None:
            raise run.unexplained.as_error()
        if self.roofline is not None and run.live is not None and run.live.explanation is not None:
            with guarded("roofline"):
                charts = roofline_charts(run.engine.machine.graph, run.live.explanation.rooflines)
                late(ROOFLINE, "draw_roofline")(charts, title, self.roofline)
            _keep_machine(self.roofline, run, title)


def list_files(machine: Topology, outputs: OutputOptions) -> RunFiles:
    """Return the files to write. Raises InputError if a file is not writable or a filter is invalid."""
    op_log, trace, roofline, globs = outputs.op_log, outputs.trace, outputs.roofline, outputs.trace_filter
    if globs is not None and trace is None:
        raise InputError("--trace-filter selects what --trace FILE shows; give both")
    _must_differ({"--op-log": op_log, "--trace": trace, "--roofline": roofline})
    return RunFiles(
        op_log=None if op_log is None else check_path(op_log),
        trace=None if trace is None else writable(trace),
        roofline=None if roofline is None else _picture(roofline),
        keep=EVERYTHING if globs is None else parse_filter(globs, machine.topology_obj.nodes),
    )


def _must_differ(paths: Mapping[str, str | None]) -> None:
    """Raise InputError if two options name the same file."""
    first: dict[Path, str] = {}
    for option, path in paths.items():
        if path is not None and first.setdefault(Path(path).resolve(), option) != option:
            raise InputError(f"{option} {path}: {first[Path(path).resolve()]} writes this file; name another")


def _picture(path: str) -> Path:
    """Return ``path``. Raises InputError if the path is not a writable PNG file."""
    if Path(path).suffix.lower() != ".png":
        raise InputError(f"--roofline {path}: a PNG is written; give a name that ends with .png")
    return writable(path)


def _keep_machine(path: Path, run: Run, title: str) -> None:
    """Write the configuration beside a file, in the format of ``--topology``, and print its name.

    Both say which launches the file lacks because their rows are folded.
    """
    config = path.with_name(f"{path.name}.config.yaml")
    heads = [f"kernbench {__version__}: {title}", *([] if run.folded is None else [run.folded.describe()])]
    comments = "".join(f"# {head}\n" for head in heads)
    with replacing(config) as temporary:
        temporary.write_text(f"{comments}{run.engine.topology.resolved_yaml()}", encoding="utf-8")
    say(f"wrote {path}, and {config.name} with its machine")
    if run.folded is not None:
        say(f"{path.name} has no folded rows: {run.folded}")
