"""Read files that commands wrote: documents of runs and folders of sweeps, also those of earlier versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from kernbench.common.complaints import one_line, show
from kernbench.common.errors import InputError
from kernbench.common.files import parse_json, read_input
from kernbench.common.late import late
from kernbench.common.program_line import ErrorPlace, ProgramLine
from kernbench.engine.keeping import DataReport
from kernbench.engine.records import PrintedLine
from kernbench.library.explanations import NOT_SAID
from kernbench.library.runs import Run, RunFailure, RunStatus, StatedVerdict
from kernbench.observe.sanitizer import Finding
from kernbench.observe.statistics import EngineUsage, MachineUse, MemoryTraffic, QueueTraffic, Traffic, Translation
from kernbench.observe.verdict import RunVerdict
from kernbench.runtime_api.arrays import Tolerance
from kernbench.runtime_api.bench_runner import BenchSummary
from kernbench.runtime_api.launch_report import LaunchSplit, RunReport
from kernbench.runtime_api.operators import LoadTime, OperatorUse
from kernbench.runtime_api.testing import Comparison, Mismatch

if TYPE_CHECKING:
    from kernbench.library.sweeps import Sweep

COMMAND = "kernbench run --json"
SWEEPS = "kernbench.library.sweeps"
PARQUET = ".parquet"
_LATER: Mapping[str, Any] = {
    "under_way": (),
    "queues": (),
    "memories": (),
    "translation": None,
    "used": {"sips": 0, "cubes": 0, "pes": 0, "slices": 0, "within": "", "parts": ()},
}
"""Defaults of fields that documents of earlier versions lack"""


def load(path: str | os.PathLike[str]) -> Run | Sweep:
    """Read a file that a command wrote: the JSON of a run, or the folder or Parquet file of a sweep.

    Raises InputError for anything else, with the command that writes such a file.
    """
    place = Path(path)
    if place.is_dir() or place.suffix == PARQUET:
        found: Sweep = late(SWEEPS, "load_sweep")(place)
        return found
    return load_run(place)


def load_run(path: Path) -> Run:
    """Read a run from a file. Raises InputError for other files, with the command that writes such a file."""
    try:
        document = parse_json(read_input(path))
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}; write it with: {COMMAND}") from error
    try:
        return run_of(document)
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
    raise InputError(f"{path}: not an output of {COMMAND}: {one_line(why)}; write it again with that command")


def run_of(document: Mapping[str, Any]) -> Run:
    """Return the run that a document describes. Fields that an earlier version did not write are empty.

    Raises KeyError, TypeError or ValueError for other documents.
    """
    if not isinstance(document, dict):
        raise TypeError(f"found {show(document)}, must be a mapping")
    given: dict[str, Any] = {**_LATER, **document}
    sim_ns = float(given["sim_ns"])
    summary = {"sim_ns": sim_ns, "phases": given.get("phases", ()), "kernels": given.get("kernels", ())}
    checked = given["verification"]
    status = _read_as(RunStatus, given["status"])
    return Run(
        bench=_read_as(str, given["bench"]),
        status=status,
        device=_read_as(str, given.get("device", "all")),
        verdict=_read_verdict(given.get("verdict")),
        params=_read_as(dict[str, Any], given["params"]),
        source=_read_as(str, given["topology"]),
        digest=_read_as(str, given["digest"]),
        configuration=_read_as(dict[str, Any], given["configuration"]),
        summary=_read_as(BenchSummary, summary),
        report=_report(given),
        checks=tuple(map(_read_comparison, checked["comparisons"])),
        skipped=int(checked["skipped"]),
        verify=bool(checked["comparisons"]),
        data=_read_as(DataReport, given.get("data", {"kept": False})),
        error=_read_failure(given.get("error")),
        place=_read_place(given.get("place")),
        exit_code={"OK": 0, "INTERRUPTED": 130}.get(status, 1),
        said=_read_as(str, given.get("said", "")),
        leaked=_read_as(tuple[str, ...], given.get("leaked", ())),
        left=_read_as(tuple[str, ...], given.get("left", ())),
        unmodelled=_read_as(dict[str, int], given.get("unmodelled", {})),
        operators=_read_as(tuple[OperatorUse, ...], given.get("operators", ())),
        remarks=_read_as(tuple[str, ...], given.get("remarks", ())),
        load=_read_as(LoadTime | None, given.get("load")),
        frontends=_read_as(dict[str, Any], given.get("frontends", {})),
        printed=_read_as(tuple[PrintedLine, ...], given.get("printed", ())),
        findings=_read_as(tuple[Finding, ...] | None, _read_findings(given.get("findings"))),
        explained_before=_read_as(dict[str, Any] | None, given.get("explanation")),
        advised=_read_as(dict[str, Any] | None, given.get("advice")),
    )


def _read_as(form: Any, found: Any) -> Any:
    return TypeAdapter(form).validate_python(found)


def _report(given: Mapping[str, Any]) -> RunReport:
    form = {
        "engines": tuple[EngineUsage, ...],
        "traffic": Traffic,
        "used": MachineUse,
        "events": int,
        "transfers": int,
        "records": int,
        "under_way": tuple[str, ...],
        "queues": tuple[QueueTraffic, ...],
        "memories": tuple[MemoryTraffic, ...],
        "translation": Translation | None,
    }
    return RunReport(
        launches=tuple(map(_read_launch, given["launches"])),
        **{name: _read_as(kind, given[name]) for name, kind in form.items()},
    )


def _read_launch(found: Mapping[str, Any]) -> LaunchSplit:
    made: LaunchSplit = _read_as(LaunchSplit, {"title": found["name"], "slowest": found["slowest_pe"], **found})
    return made


def _read_comparison(found: Mapping[str, Any]) -> Comparison:
    first = found["first_wrong"]
    made = {**found, "tolerance": Tolerance(found["rtol"], found["atol"])}
    made["first_wrong"] = None if first is None else _read_as(Mismatch, _with_numbers(first, "got", "expected"))
    read: Comparison = _read_as(Comparison, _with_numbers(made, "max_abs_error", "max_rel_error"))
    return read


def _with_numbers(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a mapping with numbers in place of the texts that stand for NaN and infinities in JSON."""
    return {**found, **{name: float(found[name]) for name in names}}


def _read_findings(found: Any) -> Any:
    if found is None:
        return None
    return [_with_places(each) for each in found]


def _with_places(finding: Mapping[str, Any]) -> dict[str, Any]:
    sides = {name: finding[name] for name in ("side", "other")}
    return {**finding, **{name: None if side is None else {"place": "", **side} for name, side in sides.items()}}


def _read_verdict(found: Any) -> RunVerdict | StatedVerdict:
    if found is None:
        return StatedVerdict(NOT_SAID)
    made: RunVerdict | StatedVerdict = _read_as(RunVerdict if "spent" in found else StatedVerdict, found)
    return made


def _read_failure(text: Any) -> RunFailure | None:
    if text is None:
        return None
    kind, _, said = str(text).partition(": ")
    return RunFailure(kind, said, said)


def _read_place(found: Any) -> ErrorPlace | None:
    if found is None:
        return None
    line = None if found["file"] is None else _read_as(ProgramLine, found)
    made: ErrorPlace = _read_as(ErrorPlace, {**found, "line": None})
    return ErrorPlace(line=line, pe=made.pe, kernel=made.kernel, rank=made.rank)
