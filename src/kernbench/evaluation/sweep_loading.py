"""Load a sweep file into a plan. All errors of the file, the command line and the named files are reported at once.

Errors that would affect every point are reported with their place. An error that concerns only some points becomes
the result of these points, for example a number of slices that one machine does not allow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from kernbench.ccl.config import CclConfig
from kernbench.ccl.loading import LOCAL_FILE as LOCAL_CCL
from kernbench.ccl.loading import load_ccl_config
from kernbench.common.complaints import Complaint, one_of, show
from kernbench.common.config import Document, apply_overrides, check, load_document, path_of, problems_of, report
from kernbench.common.errors import (
    BenchError,
    ConfigError,
    InputError,
    KernbenchError,
    Problem,
    UnknownNameError,
    close_to,
)
from kernbench.common.values import state, value
from kernbench.common.yaml_document import YamlPlace
from kernbench.di.registry import REGISTRY
from kernbench.evaluation.sweep_columns import families_of, find_column_errors, make_scope
from kernbench.evaluation.sweep_measure import list_columns
from kernbench.evaluation.sweep_plan import BASE, BaseMachine, SweepPlan, as_override
from kernbench.evaluation.sweep_spec import (
    MACHINE,
    AxisValue,
    Plot,
    SweepDraft,
    SweepSpec,
    draft_complaints,
    is_numeric,
    read_draft,
    why_not_stored,
)
from kernbench.result.run_columns import BOUNDS
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.frontends import frontend_settings
from kernbench.runtime_api.overrides import OverrideTarget, part_of
from kernbench.runtime_api.prepared_run import load_program
from kernbench.runtime_api.run_request import (
    CclSource,
    LimitOptions,
    MachineOptions,
    ObservationOptions,
    ProgramOptions,
    RankCount,
    RunRequest,
)
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import compile_topology, is_machine_name, machine_file, topology_file
from kernbench.topology.spec import TopologySpec


def plan_complaints(
    draft: SweepDraft, bench: Bench | None, bases: Mapping[str, Document], machines: Mapping[str, BaseMachine] | None
) -> Iterator[Complaint]:
    """Yield all errors of the readable entries.

    ``bases``: the machine files that could be read, by name. ``bench`` and ``machines`` are None if they could not be
    loaded.
    """
    yield from _device_complaints(draft)
    for at, plot in enumerate(draft.plots):
        if plot is not None:
            yield from _column_complaints(at, plot, draft)
    yield from _Checker(draft, bench, bases).complaints()
    configurations = None if machines is None else [machine.configuration for machine in machines.values()]
    yield from find_column_errors(draft, make_scope(draft, bench, configurations))


def _device_complaints(draft: SweepDraft) -> Iterator[Complaint]:
    try:
        DeviceSelector(draft.device)
    except InputError as error:
        yield Complaint(("device",), str(error))


def _column_complaints(at: int, plot: Plot, draft: SweepDraft) -> Iterator[Complaint]:
    numeric = [*(name for name, kind in list_columns().items() if kind is not str), *draft.columns]
    for key, name in (("value", plot.value), ("cost", plot.cost)):
        if name is None or (plot.kind == "heat-map" and name in BOUNDS):
            continue
        if name not in numeric and name not in draft.grid:
            hint = close_to(name, [*numeric, *draft.grid])
            names = f"there are the axes, and {one_of(families_of(numeric))}"
            yield Complaint(("plots", at, key), f"{name!r} is no numeric column; {hint}{names}")
        elif not is_numeric(draft.grid.get(name, ())):
            yield Complaint(("plots", at, key), f"the values of {name} are no numbers")


@value
class _Checker:
    """Finds values that no point of a machine can use. Each axis is checked with the other axes at either end.

    ``bases``: the base machines by name.
    """

    draft: SweepDraft
    bench: Bench | None
    bases: Mapping[str, Document]

    def complaints(self) -> Iterator[Complaint]:
        """Yield a complaint per invalid fixed value and per invalid axis."""
        for path, fixed in self.draft.fixed.items():
            message = self._trouble(path, (fixed,))
            if message:
                yield Complaint(("set", path), message)
        for path, values in self.draft.changing_axes.items():
            message = self._trouble(path, values)
            if message:
                yield Complaint(("grid", path), message)

    def _trouble(self, path: str, values: Iterable[AxisValue]) -> str:
        """Describe the error of ``path`` if a machine allows no value. Return an empty text if each allows one."""
        if part_of(path) != "machine":
            return self._trouble_on(path, values, None)
        messages = {name: self._trouble_on(path, values, base) for name, base in self.bases.items()}
        refusing = [name for name, message in messages.items() if message]
        if not refusing:
            return ""
        where = f" (machine {one_of(refusing)})" if len(refusing) < len(messages) else ""
        return f"{messages[refusing[0]]}{where}"

    def _trouble_on(self, path: str, values: Iterable[AxisValue], base: Document | None) -> str:
        """Describe the error of ``path`` if all values are invalid. Return an empty text if a value is valid."""
        axes = self.draft.changing_axes
        ends = [{axis: contents[at] for axis, contents in axes.items()} for at in (0, -1)]
        first = ""
        for content in values:
            for end in ends:
                message = self._problem_at(path, {**self.draft.fixed, **end, path: content}, base)
                if not message:
                    return ""
                first = first or message
        return first

    def _problem_at(self, path: str, choices: Mapping[str, AxisValue], base: Document | None) -> str:
        part = part_of(path)
        texts = [as_override(choice) for choice in choices.items() if part_of(choice[0]) == part]
        try:
            self._apply(part, texts, base)
        except ConfigError as error:
            source = f"--set {as_override((path, choices[path]))}"
            return next((problem.message for problem in error.problems if problem.source == source), "")
        return ""

    def _apply(self, part: OverrideTarget, texts: Sequence[str], base: Document | None) -> None:
        """Raise ConfigError for values that the bench, a front end or the machine rejects."""
        if part == "frontends":
            frontend_settings(texts)
        elif part == "bench" and self.bench is not None:
            self.bench.make_params(texts)
        elif part == "machine" and base is not None:
            document = apply_overrides(base, texts)
            report(document, check(document, TopologySpec, context=REGISTRY).complaints)


T = TypeVar("T")


def plan_sweep(
    path: str | Path, choices: RunRequest | None = None, *, jobs: int = 1, wrong: Sequence[Problem] = ()
) -> SweepPlan:
    """Read a sweep file. ``choices`` on the command line override its entries.

    ``jobs`` simultaneous runs share the limit of recorded values. Raises ConfigError with all errors, including those
    in ``wrong`` about the command line.
    """
    return plan_document(load_document(path), Path(path), choices or RunRequest(), jobs=jobs, wrong=wrong)


def plan_document(
    document: Document,
    path: Path,
    choices: RunRequest,
    *,
    jobs: int = 1,
    wrong: Sequence[Problem] = (),
    bench: Bench | None = None,
    base: Document | None = None,
) -> SweepPlan:
    """Plan the sweep of a document. ``path``: its name and folder. Other arguments are as in ``plan_sweep``.

    ``bench``, ``base``: the program and the machine of a call, already loaded.
    """
    checked = check(document, SweepSpec)
    draft = read_draft(document, checked.complaints)
    loading = _Loading(document, path.parent, list(checked.complaints), list(wrong))
    draft = loading.with_overrides(draft, choices.override_texts)
    loading.complain(*draft_complaints(draft))
    draft = draft.without({complaint.path[:2] for complaint in loading.complaints})
    ranks: RankCount | None = "all" if document.get(("run",)) == "ranks" else None
    program = ProgramOptions() if bench is not None else _read_program(draft.program, path.parent, ranks)
    if ranks is not None and program.script is None:
        loading.complain(Complaint(("run",), "only a script has ranks"))
    bench = loading.bench(program) if bench is None else bench
    bases = loading.bases(draft, choices.machine.topology) if base is None else {BASE: base}
    machines = loading.compile(bases) if bases else None
    collectives = loading.file("ccl", draft.ccl, _file_of(choices.machine.ccl), _load_ccl)
    loading.complain(*plan_complaints(draft, bench, bases, machines))
    loading.report()
    assert checked.value is not None, "a file without complaints has a value"
    assert bench is not None, "a sweep without complaints has a bench"
    assert machines is not None, "a sweep without complaints has its machines"
    assert collectives is not None, "a sweep without complaints has its collectives"
    spec = checked.value.model_copy(update={"fixed": dict(draft.fixed)})
    reuses = spec.run == "reuse"
    no_data = reuses and choices.data.data is None
    request = RunRequest(
        program=program,
        machine=MachineOptions(device=spec.device, ccl=collectives),
        data=replace(choices.data, verify=spec.verify, share=jobs, data=False if no_data else choices.data.data),
        reuse=replace(choices.reuse, reuse=choices.reuse.reuse or reuses),
        limits=LimitOptions(log_rows=choices.limits.log_rows if spec.log_rows is None else spec.log_rows),
        observation=ObservationOptions(observe=spec.explain),
    )
    data = request.data.policy(bench=bench.data)
    request.reuse.rules(keeps_data=data.keep)
    _ = request.limits.most_rows
    return SweepPlan(path.stem, spec, bench, request, machines, collectives, data)


def _read_program(entries: Mapping[str, Any], beside: Path, ranks: RankCount | None) -> ProgramOptions:
    """Return the program of a sweep file. Its path becomes absolute, because workers may have another folder."""
    bench, script = (content if isinstance(content := entries.get(key), str) else None for key in ("bench", "script"))
    if script is None:
        return ProgramOptions(bench=os.fspath((beside / bench).resolve()) if bench and ".py" in bench else bench)
    args = entries.get("args")
    return ProgramOptions(
        script=os.fspath((beside / script).resolve()),
        args=tuple(map(str, args)) if isinstance(args, list | tuple) else (),
        as_cuda=entries.get("as_cuda") is True,
        ranks=ranks,
    )


def _file_of(path: CclSource) -> str | None:
    return os.fspath(path) if isinstance(path, str | os.PathLike) else None


@state
class _Loading:
    """A sweep file while it is loaded, and all its errors so far.

    ``elsewhere``: errors on the command line and in the named files.
    """

    document: Document
    beside: Path
    complaints: list[Complaint]
    elsewhere: list[Problem] = field(default_factory=list)

    def complain(self, *complaints: Complaint) -> None:
        self.complaints += complaints

    def report(self) -> None:
        """Raise ConfigError if there is any error."""
        problems = (*problems_of(self.document, self.complaints), *dict.fromkeys(self.elsewhere))
        if problems:
            raise ConfigError(problems)

    def attempt(self, source: str, action: Callable[[], T]) -> T | None:
        """Return the result of ``action`` on the file ``source``. If it fails, store its errors and return None."""
        try:
            return action()
        except ConfigError as error:
            self.elsewhere += error.problems
        except InputError as error:
            self.elsewhere.append(Problem(source=source, line=0, column=0, path="", message=str(error)))
        return None

    def with_overrides(self, draft: SweepDraft, overrides: Sequence[str]) -> SweepDraft:
        """Return ``draft`` with the settings of the command line."""
        fixed = dict(draft.fixed)
        for text in overrides:
            source = f"--set {text}"
            try:
                name, value = _choice(text)
                if name in draft.grid:
                    raise ValueError(f"the grid varies {name}")
            except ValueError as error:
                self.elsewhere.append(Problem(source=source, line=0, column=0, path="", message=str(error)))
                continue
            fixed[name] = value
            marks = {**self.document.marks, ("set", name): YamlPlace(source, (0, 0), (0, 0))}
            self.document = replace(self.document, marks=marks)
        return replace(draft, fixed=fixed)

    def bench(self, program: ProgramOptions) -> Bench | None:
        """Return the bench or the script of the file, or None after a complaint."""
        if program.bench is None and program.script is None:
            return None
        try:
            bench = load_program(program)
            _check_bench(bench)
        except KernbenchError as error:
            self.complain(Complaint(("bench" if program.script is None else "script",), str(error)))
            return None
        return bench

    def bases(self, draft: SweepDraft, chosen: str | None) -> dict[str, Document]:
        """Return the files of the base machines by name, without those that cannot be read.

        ``chosen``: the machine of the command line.
        """
        if MACHINE not in draft.grid:
            document = self.machine(draft.topology, chosen)
            return {} if document is None else {BASE: document}
        why = f"the grid varies {MACHINE}; give the machine in one place"
        if draft.topology is not None:
            self.complain(Complaint(("topology",), why, at_key=True))
        if chosen is not None:
            self.elsewhere.append(Problem(source="--topology", line=0, column=0, path="", message=why))
        documents = {}
        for at, content in enumerate(draft.grid[MACHINE]):
            try:
                file = _locate_machine(content, self.beside)
            except InputError as error:
                self.complain(Complaint(("grid", MACHINE, at), str(error)))
                continue
            document = self.attempt(file, partial(load_document, file))
            if document is not None:
                documents[str(content)] = document
        return documents

    def compile(self, bases: Mapping[str, Document]) -> dict[str, BaseMachine] | None:
        """Compile the base machines; None if one is invalid."""
        machines = {}
        for name, document in bases.items():
            topology = self.attempt(document.source, partial(compile_topology, document))
            if topology is not None:
                machines[name] = BaseMachine(document, topology)
        return machines if len(machines) == len(bases) else None

    def machine(self, named: str | None, chosen: str | None) -> Document | None:
        """Load the machine of the command line, else of the sweep file: a packaged machine, or a file beside it."""
        if chosen is None and named is not None and is_machine_name(named, self.beside):
            try:
                chosen = machine_file(named, self.beside)
            except UnknownNameError as error:
                self.complain(Complaint(("topology",), str(error)))
                return None
        return self.file("topology", named, chosen, lambda file: load_document(topology_file(file)))

    def file(self, key: str, named: str | None, chosen: str | None, load: Callable[[str | None], T]) -> T | None:
        """Load the file of the command line, else that of the entry ``key``, with ``load``."""
        if chosen is None and named is not None:
            chosen = os.fspath(self.beside / named)
            if not Path(chosen).exists():
                self.complain(Complaint((key,), f"{chosen}: no such file"))
                return None
        return self.attempt(chosen or key, partial(load, chosen))


def _locate_machine(content: AxisValue, folder: Path) -> str:
    """Return the file of a value of the axis ``machine``. ``folder``: the folder of the sweep file.

    Raises InputError for a value that is no text, for an unknown name, and for a missing file.
    """
    if not isinstance(content, str):
        raise InputError(f"found {show(content)}, must be the name of a packaged machine or a file")
    if is_machine_name(content, folder):
        return machine_file(content, folder)
    file = folder / content
    if not file.is_file():
        raise InputError(f"{file}: no such file")
    return str(file)


def _choice(text: str) -> tuple[str, AxisValue]:
    """Split ``path=value`` and read the value as YAML. Raises ValueError, with the reason, for other texts."""
    name, equals, content = (part.strip() for part in text.partition("="))
    path_of(name)
    if not equals:
        raise ValueError("no '='; write path=value, for example cube.hbm.slices=16")
    try:
        value: AxisValue = apply_overrides(Document("--set", {}, {}), [f"value={content}"]).get(("value",))
    except ConfigError as error:
        raise ValueError("; ".join(problem.message for problem in error.problems)) from error
    why = why_not_stored(value)
    if why:
        raise ValueError(why)
    return name, value


def _load_ccl(file: str | None) -> CclConfig:
    """Load the collective configuration from a file, else from ./ccl.yaml, else from the package.

    The result has an absolute path, because workers may have another current folder.
    """
    if file is None and Path(LOCAL_CCL).exists():
        file = LOCAL_CCL
    return load_ccl_config(None if file is None else Path(file).resolve())


def _check_bench(bench: Bench) -> None:
    if bench.evaluation:
        raise BenchError(f"{bench.name!r} builds its own engines, so a sweep cannot measure it; use kernbench run")
