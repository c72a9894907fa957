"""What ``kernbench run`` leaves beside its report: the op-log and the trace as files. Checked before the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import rich_click as click

from kernbench.cli.run_engine import RunEngine
from kernbench.cli.run_extras import Extras
from kernbench.common.errors import InputError
from kernbench.runtime_api.run_explanation import explain_run
from kernbench.sim_engine.op_log_io import checked_path, writable, write_op_log
from kernbench.sim_engine.trace import make_trace
from kernbench.sim_engine.trace_filter import EVERYTHING, LINKS, MEMORY, TraceFilter, parse_filter
from kernbench.sim_engine.trace_io import write_trace
from kernbench.sim_engine.trace_log import TraceLog
from kernbench.topology.builder import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What is wanted beside the report."""

    op_log: Path | None = None
    trace: Path | None = None
    keep: TraceFilter = EVERYTHING
    explain: bool = False
    sanitize: bool = False

    def observe(self, engine: RunEngine) -> TraceLog | None:
        """Begin to observe ``engine``, as far as something wanted needs it."""
        if self.trace is None and not self.explain:
            return None
        links = self.trace is not None and self.keep.may_keep(LINKS)
        return TraceLog(engine.machine, links=links, memories=self.explain or self.keep.may_keep(MEMORY))

    def extras(self, engine: RunEngine, log: TraceLog | None, end_ns: float) -> Extras:
        """What the report has beside its figures; the run ended at ``end_ns``, before it was cleaned up."""
        return Extras(
            explanation=explain_run(log, engine.handles, 0.0, end_ns) if self.explain and log is not None else None,
            printed=engine.printed(),
            findings=engine.findings() if self.sanitize else None,
        )

    def write(self, engine: RunEngine, log: TraceLog | None) -> None:
        """Write the files."""
        if self.op_log is not None:
            _write(self.op_log, lambda path: write_op_log(engine.op_log, path))
        if self.trace is not None and log is not None:
            trace = make_trace(log, engine.handles, self.keep)
            _write(self.trace, lambda path: write_trace(trace, path))


def wanted_outputs(
    machine: Topology, op_log: str | None, trace: str | None, keep: str | None, *, explain: bool, sanitize: bool
) -> Outputs:
    """The outputs that options ask for. InputError for a file that cannot be written and for a filter without sense."""
    if keep is not None and trace is None:
        raise InputError("--trace-filter says what --trace FILE shows; give both")
    return Outputs(
        op_log=None if op_log is None else checked_path(op_log),
        trace=None if trace is None else writable(trace),
        keep=EVERYTHING if keep is None else parse_filter(keep, machine.topology_obj.nodes),
        explain=explain,
        sanitize=sanitize,
    )


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        write(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    click.echo(f"wrote {path}", err=True)
