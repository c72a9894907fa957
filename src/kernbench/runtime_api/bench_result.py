"""What a bench run found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum

from kernbench.common.config import ConfigModel
from kernbench.common.errors import KernbenchError
from kernbench.common.program_line import ProgramLine
from kernbench.common.units import whole_ps
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.keeping import DataReport
from kernbench.observe.statistics import LinkTraffic
from kernbench.runtime_api.error_place import ErrorPlace, place_of
from kernbench.runtime_api.memory import CleanupReport
from kernbench.runtime_api.requests import RequestRecord
from kernbench.runtime_api.testing import Comparison


class BenchStatus(StrEnum):
    """How a run ended."""

    OK = "ok"
    FAILED = "FAILED"
    NO_REQUESTS = "NO_REQUESTS"


@value(kw_only=True)
class PhaseSummary:
    """All requests of one phase: how many, their bytes, the ns in which at least one was under way, the longest."""

    phase: str
    requests: int
    nbytes: int
    busy_ns: float
    longest_ns: float


@value(kw_only=True)
class KernelSummary:
    """All launches of one name: how many, the ns of all, and the PE that ran longest in any of them.

    ``algorithm``: of a collective, what carried these out; others of the name are counted by themselves.
    """

    name: str
    algorithm: str | None
    launches: int
    total_ns: float
    pe_count: int
    pe_exec_ns: float


@value(kw_only=True)
class BenchSummary:
    """The figures of a run; phases and kernels in the order in which they first appear."""

    sim_ns: float
    phases: tuple[PhaseSummary, ...]
    kernels: tuple[KernelSummary, ...]


@value(kw_only=True)
class RunCompletion:
    """How a whole run ended; times in ns, of the program.

    ``request_id``: of the request that failed, else of the last that was seen; None when there was none.
    """

    request_id: int | None
    t_start: float
    t_end: float
    error: Exception | None

    @property
    def ok(self) -> bool:
        """Whether the program returned, all that it submitted has ended, and all that was compared was close."""
        return self.error is None


@value(kw_only=True)
class BenchResult:
    """A run of a bench.

    ``completion``: how it ended, with the error that says why not well; ``traces``: every request; ``sim_ns``:
    simulated time of the program, without the cleaning up; ``value``: what it returned; ``error``: what it raised;
    ``skipped_comparisons``: those that were not evaluated, since the run does not verify; ``links``: what each had
    carried when the program was over; ``program``: where the bench begins; ``unmodelled``: operators of a front end
    that the host computed, at the price of copies, and how often; ``data``: what was kept, read and computed.
    """

    bench: str
    status: BenchStatus
    device: str
    params: ConfigModel
    engine: GraphEngine
    completion: RunCompletion
    traces: tuple[RequestRecord, ...]
    comparisons: tuple[Comparison, ...]
    skipped_comparisons: int
    sim_ns: float
    summary: BenchSummary
    cleanup: CleanupReport
    program: ProgramLine
    data: DataReport
    links: tuple[LinkTraffic, ...] = ()
    value: object = None
    error: Exception | None = None
    unmodelled: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the run went well."""
        return self.completion.ok

    def raise_for_status(self) -> None:
        """Raise what went wrong, the cause itself; nothing after a run that went well."""
        if self.completion.error is not None:
            raise self.completion.error

    @property
    def place(self) -> ErrorPlace | None:
        """Where the run failed, at least which bench it was; None after a run that went well."""
        failure = self.completion.error
        if failure is None:
            return None
        asked = next((each.line for each in self.comparisons if not each.passed), None) if self.error is None else None
        found = place_of(failure)
        return replace(found, line=found.line or asked or self.program)

    @property
    def verified(self) -> bool:
        """Whether anything was compared; what was not close makes ``ok`` false."""
        return bool(self.comparisons)

    @property
    def exit_code(self) -> int:
        """What the command line ends with."""
        if isinstance(self.error, KernbenchError):
            return self.error.exit_code
        return 0 if self.ok else 1


def summarise(records: tuple[RequestRecord, ...], sim_ns: float) -> BenchSummary:
    """The figures of a run from its requests."""
    phases = dict.fromkeys(record.phase for record in records)
    launches = [record for record in records if record.phase == "launch"]
    kinds = dict.fromkeys((record.name, record.algorithm) for record in launches)
    return BenchSummary(
        sim_ns=sim_ns,
        phases=tuple(_phase(phase, [each for each in records if each.phase == phase]) for phase in phases),
        kernels=tuple(_kernel([each for each in launches if (each.name, each.algorithm) == kind]) for kind in kinds),
    )


def _phase(phase: str, records: list[RequestRecord]) -> PhaseSummary:
    return PhaseSummary(
        phase=phase,
        requests=len(records),
        nbytes=sum(record.nbytes for record in records),
        busy_ns=_covered((record.t_start_ns, record.t_end_ns) for record in records),
        longest_ns=max(record.total_ns for record in records),
    )


def _kernel(records: list[RequestRecord]) -> KernelSummary:
    return KernelSummary(
        name=records[0].name,
        algorithm=records[0].algorithm,
        launches=len(records),
        total_ns=whole_ps(sum(record.total_ns for record in records)),
        pe_count=len({pe for record in records for pe in record.pe_exec_ns}),
        pe_exec_ns=max((ns for record in records for ns in record.pe_exec_ns.values()), default=0.0),
    )


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return whole_ps(total)
