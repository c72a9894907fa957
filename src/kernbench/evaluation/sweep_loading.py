"""From a sweep file to a plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kernbench.common.complaints import Complaint
from kernbench.common.config import Document, apply_overrides, load_document, path_of, report, validate
from kernbench.common.errors import BenchError, ConfigError, InputError, UnknownNameError
from kernbench.evaluation.sweep_checks import plan_complaints
from kernbench.evaluation.sweep_plan import SweepPlan
from kernbench.evaluation.sweep_spec import SweepSpec, Value, why_not_stored
from kernbench.runtime_api.bench_loader import load_bench
from kernbench.runtime_api.bench_registry import Bench
from kernbench.topology.builder import DEFAULT_NAME, compile_topology, topology_file


def plan_sweep(path: str | Path, topology: str | None = None, overrides: Sequence[str] = ()) -> SweepPlan:
    """Read a sweep file; ``topology`` and ``overrides`` (``path=value``) go before what it says.

    ConfigError with everything that is wrong with it.
    """
    document = load_document(path)
    spec = validate(document, SweepSpec)
    spec = _with_overrides(spec, overrides)
    beside = Path(path).parent
    base = load_document(_topology_file(spec, topology, beside))
    machine = compile_topology(base)
    bench_name = _bench_name(spec.bench, beside)
    try:
        bench = load_bench(bench_name)
        _check_bench(bench)
    except (BenchError, UnknownNameError) as error:
        report(document, [Complaint(("bench",), str(error))])
        raise
    plan = SweepPlan(Path(path).stem, spec, bench, bench_name, base, machine)
    report(document, plan_complaints(plan))
    return plan


def _with_overrides(spec: SweepSpec, overrides: Sequence[str]) -> SweepSpec:
    """``set`` with what the command line sets."""
    if not overrides:
        return spec
    fixed = dict(spec.fixed)
    for text in overrides:
        name = text.partition("=")[0].strip()
        if name in spec.grid:
            raise InputError(f"--set {text}: the grid varies {name}")
        _must_be_path(name, text)
        fixed[name] = _value_of(text)
    return spec.model_copy(update={"fixed": fixed})


def _must_be_path(name: str, text: str) -> None:
    try:
        path_of(name)
    except ValueError as error:
        raise InputError(f"--set {text}: {error}") from error


def _value_of(text: str) -> Value:
    """What stands behind the ``=``, read like YAML."""
    if "=" not in text:
        raise InputError(f"--set {text}: no '='; write path=value, for example cube.hbm.slices=16")
    _, equals, given = text.partition("=")
    try:
        value: Value = apply_overrides(Document("--set", {}, {}), [f"value{equals}{given}"]).get(("value",))
    except ConfigError as error:
        why = "; ".join(each.message for each in error.problems)
        raise InputError(f"--set {text}: {why}") from error
    why = why_not_stored(value)
    if why:
        raise InputError(f"--set {text}: {why}")
    return value


def _topology_file(spec: SweepSpec, asked: str | None, beside: Path) -> str:
    if asked is not None or spec.topology is None or spec.topology == DEFAULT_NAME:
        return topology_file(asked or spec.topology)
    return os.fspath(beside / spec.topology)


def _bench_name(text: str, beside: Path) -> str:
    """A file of the user's in full, since workers may stand elsewhere; a name as it is."""
    return os.fspath((beside / text).resolve()) if ".py" in text else text


def _check_bench(bench: Bench) -> None:
    if bench.evaluation:
        raise BenchError(f"{bench.name!r} builds engines of its own, so there is nothing to measure; run it by itself")
