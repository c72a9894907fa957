"""Observe a run for more than its report: ``--explain``, ``--sanitize``, and the files that it leaves."""

from __future__ import annotations

from pathlib import Path

from kernbench.cli.console import say
from kernbench.cli.run_extras import Extras
from kernbench.common import __version__
from kernbench.common.errors import InputError
from kernbench.common.files import replacing, writable
from kernbench.common.values import state
from kernbench.engine.engine import GraphEngine, Observer
from kernbench.observe.op_log_io import checked_path, write_op_log
from kernbench.observe.sanitizer import Sanitizer
from kernbench.observe.trace import make_trace
from kernbench.observe.trace_filter import EVERYTHING, LINKS, TraceFilter, parse_filter
from kernbench.observe.trace_io import write_trace
from kernbench.observe.trace_log import TraceLog
from kernbench.observe.works import Works
from kernbench.runtime_api.run_explanation import explain_run
from kernbench.topology.builder import Topology


@state(kw_only=True)
class Outputs:
    """The outputs wanted beside the report, and the observers that make them."""

    op_log: Path | None = None
    trace: Path | None = None
    keep: TraceFilter = EVERYTHING
    explain: bool = False
    sanitize: bool = False
    log: TraceLog | None = None
    sanitizer: Sanitizer | None = None

    def make_observers(self) -> tuple[Observer, ...]:
        """Return new observers, as many as something wanted needs."""
        self.sanitizer = Sanitizer() if self.sanitize else None
        self.log = None
        if self.trace is not None or self.explain:
            links = self.trace is not None and self.keep.may_keep(LINKS)
            self.log = TraceLog(links=links, watch_queues=self.trace is not None)
        return tuple(each for each in (self.sanitizer, self.log) if each is not None)

    @property
    def works(self) -> Works | None:
        """The works of the engines as the explanation has them, so that a report need not read them again."""
        return self.log.seen.works if self.explain and self.log is not None else None

    def extras(self, engine: GraphEngine, end_ns: float) -> Extras:
        """Return what the report has beside its figures; the run ended at ``end_ns``, before it was cleaned up."""
        explanation = None
        if self.explain and self.log is not None:
            explanation = explain_run(self.log, engine.handles, 0.0, end_ns)
        return Extras(
            explanation=explanation,
            printed=engine.printed(),
            findings=None if self.sanitizer is None else self.sanitizer.findings(engine),
        )

    def write(self, engine: GraphEngine, what: str) -> None:
        """Write the files, and beside each the machine that it was made on; ``what`` was run."""
        if self.op_log is not None:
            write_op_log(engine.op_log, self.op_log)
            _keep_machine(self.op_log, engine.topology, what)
        if self.trace is not None and self.log is not None:
            write_trace(make_trace(self.log, engine.handles, self.keep), self.trace)
            _keep_machine(self.trace, engine.topology, what)


def wanted_outputs(
    machine: Topology, op_log: str | None, trace: str | None, keep: str | None, *, explain: bool, sanitize: bool
) -> Outputs:
    """Return the outputs that options ask for.

    InputError for a file that cannot be written and for a filter without sense.
    """
    if keep is not None and trace is None:
        raise InputError("--trace-filter says what --trace FILE shows; give both")
    return Outputs(
        op_log=None if op_log is None else checked_path(op_log),
        trace=None if trace is None else writable(trace),
        keep=EVERYTHING if keep is None else parse_filter(keep, machine.topology_obj.nodes),
        explain=explain,
        sanitize=sanitize,
    )


def _keep_machine(path: Path, machine: Topology, what: str) -> None:
    """Write the configuration beside a file, as a file that ``--topology`` takes, and say so."""
    config = path.with_name(f"{path.name}.config.yaml")
    with replacing(config) as temporary:
        temporary.write_text(f"# kernbench {__version__}: {what}\n{machine.resolved_yaml()}", encoding="utf-8")
    say(f"wrote {path}, and {config.name} with the machine it was made on")
