"""What ``kernbench run`` leaves beside its report: the op-log and the trace as files. Checked before the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernbench import __version__
from kernbench.ccl.diagnostics import trace_ccl
from kernbench.cli.console import say
from kernbench.cli.run_engine import RunEngine
from kernbench.cli.run_extras import Extras
from kernbench.common.errors import InputError
from kernbench.common.files import replacing, writable
from kernbench.observe.op_log_io import checked_path, write_op_log
from kernbench.observe.sanitizer import Sanitizer
from kernbench.observe.trace import make_trace
from kernbench.observe.trace_filter import EVERYTHING, LINKS, MEMORY, TraceFilter, parse_filter
from kernbench.observe.trace_io import write_trace
from kernbench.observe.trace_log import TraceLog
from kernbench.runtime_api.run_explanation import explain_run
from kernbench.topology.builder import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What is wanted beside the report."""

    op_log: Path | None = None
    trace: Path | None = None
    keep: TraceFilter = EVERYTHING
    explain: bool = False
    sanitize: bool = False
    trace_ccl: bool = False

    def observe(self, engine: RunEngine) -> TraceLog | None:
        """Begin to observe ``engine``, as far as something wanted needs it."""
        if self.trace_ccl:
            trace_ccl(engine)
        if self.trace is None and not self.explain:
            return None
        links = self.trace is not None and self.keep.may_keep(LINKS)
        memories = self.explain or self.keep.may_keep(MEMORY)
        return TraceLog(engine.machine, links=links, memories=memories, watch_queues=self.trace is not None)

    def extras(self, engine: RunEngine, log: TraceLog | None, sanitizer: Sanitizer | None, end_ns: float) -> Extras:
        """What the report has beside its figures; the run ended at ``end_ns``, before it was cleaned up."""
        return Extras(
            explanation=explain_run(log, engine.handles, 0.0, end_ns) if self.explain and log is not None else None,
            printed=engine.printed(),
            findings=None if sanitizer is None else sanitizer.findings(engine),
        )

    def write(self, engine: RunEngine, log: TraceLog | None, what: str) -> None:
        """Write the files, and beside each the machine that it was made on; ``what`` was run."""
        if self.op_log is not None:
            write_op_log(engine.op_log, self.op_log)
            _wrote(self.op_log, engine.topology, what)
        if self.trace is not None and log is not None:
            write_trace(make_trace(log, engine.handles, self.keep), self.trace)
            _wrote(self.trace, engine.topology, what)


def wanted_outputs(
    machine: Topology,
    op_log: str | None,
    trace: str | None,
    keep: str | None,
    *,
    explain: bool,
    sanitize: bool,
    trace_ccl: bool,
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
        trace_ccl=trace_ccl,
    )


def _wrote(path: Path, machine: Topology, what: str) -> None:
    """Say so, and keep the configuration: a file that ``--topology`` takes."""
    config = path.with_name(f"{path.name}.config.yaml")
    with replacing(config) as temporary:
        temporary.write_text(f"# kernbench {__version__}: {what}\n{machine.resolved_yaml()}", encoding="utf-8")
    say(f"wrote {path}, and {config.name} with the machine it was made on")
