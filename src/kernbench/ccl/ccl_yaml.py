"""Reads ``ccl.yaml``: what applies to all algorithms, then each algorithm with what it changes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from kernbench.ccl.config import AlgorithmConfig, AlgorithmSettings, CclConfig, Scalar
from kernbench.ccl.layouts import MAPPERS, VALIDATORS
from kernbench.ccl.loading import (
    MODULES,
    PASSED_KEYS,
    PASSED_PREFIX,
    foreign_key,
    is_path,
    known_keys,
    load_algorithm,
    module_called,
    passes,
)
from kernbench.ccl.topologies import TOPOLOGIES
from kernbench.common.complaints import one_of, show
from kernbench.common.config import (
    Complaint,
    ConfigModel,
    Document,
    Size,
    apply_overrides,
    check,
    load_document,
    report,
)
from kernbench.common.errors import close_to
from kernbench.messages.queues import Backpressure, BufferKind
from kernbench.messages.steps import ReduceName
from kernbench.topology.spec import current_topology_name

LOCAL_FILE = "ccl.yaml"
IDLE_KEY = "vc_chunk_size"
# What only ``defaults`` says: it is there too where somebody has merged them with an algorithm's section.
_OF_DEFAULTS = ("algorithm", "strict")

_Count = Annotated[int, Field(ge=1, le=1 << 50)]
_Section: TypeAlias = tuple[str, ...]


def _known(kind: str, known: Collection[str]) -> AfterValidator:
    """What is no path, seen from the folder of the file, has to be built in."""

    def check_name(name: str, info: ValidationInfo) -> str:
        if name not in known and not is_path(name, info.context):
            raise ValueError(
                f"unknown {kind} {name!r}; {close_to(name, known)}there are: {one_of(known)}; or a path to one of yours"
            )
        return name

    return AfterValidator(check_name)


class _Settings(ConfigModel):
    """What ``defaults`` and every algorithm may say; None: not said here."""

    topology: Annotated[str, BeforeValidator(current_topology_name), _known("topology", TOPOLOGIES)] | None = None
    mapper: Annotated[str, _known("mapper", MAPPERS)] | None = None
    validator: Annotated[str, _known("validator", VALIDATORS)] | None = None
    buffer_kind: BufferKind | None = None
    backpressure: Backpressure | None = None
    poll_ns: Annotated[float, Field(ge=0.001, le=1e12)] | None = None
    n_slots: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    slot_size: Annotated[Size, Field(ge=64, multiple_of=16)] | None = None
    ipcq_credit_size_bytes: Annotated[Size, Field(le=1 << 20)] | None = None
    n_elem: _Count | None = None
    world_size: _Count | None = None
    reduce_op: ReduceName | None = None
    chunk_size: Size | None = None
    root_cube: Annotated[int, Field(ge=0)] | None = None


class _Defaults(_Settings):
    algorithm: str | None = None
    strict: bool = False


class _AlgorithmSection(_Settings):
    module: Annotated[str, _known("module", MODULES)]


class _CclFile(ConfigModel):
    defaults: _Defaults = _Defaults()
    algorithms: dict[str, _AlgorithmSection] = Field(min_length=1)


def load_ccl_config(path: str | os.PathLike[str] | None = None, overrides: Iterable[str] = ()) -> CclConfig:
    """Read a file; None: ./ccl.yaml, else the packaged one. ``overrides`` are ``path=value`` texts, as of ``--set``.

    ConfigError with every problem, in file order. Warns of keys that do nothing.
    """
    return ccl_config_of(apply_overrides(load_document(_file(path)), overrides))


def ccl_config_of(document: Document) -> CclConfig:
    """The configuration in a parsed file. ConfigError with every problem, in file order."""
    data = deepcopy(document.data)
    passed = {path: _taken_out(section) for path, section in _sections(data)}
    folder = Path(document.source).absolute().parent
    checked = check(Document(document.source, data, document.marks), _CclFile, context=folder)
    rules = _not_passable(passed), _broken_rules(document), _foreign_keys(document)
    report(document, [*checked.complaints, *chain(*rules)])
    assert checked.value is not None, "a document without complaints has a value"
    for path, section in _sections(document.data):
        if IDLE_KEY in section:
            place = document.place((*path, IDLE_KEY))
            warnings.warn(f"{place.source}:{place.key[0]}: {IDLE_KEY} does nothing; leave it out", stacklevel=3)
    file = checked.value
    resolved = tuple(_resolved(name, file, passed, document, folder) for name in file.algorithms)
    report(document, _chunks_without_slot(document, resolved))
    return CclConfig(document.source, file.defaults.algorithm, resolved)


def check_ccl(path: str | os.PathLike[str]) -> None:
    """Raise what is wrong with a file, and with the algorithm that it means by default, before anything runs."""
    cfg = load_ccl_config(path)
    if cfg.default_algorithm is not None or len(cfg.algorithms) == 1:
        load_algorithm(cfg.algorithm())


CclLike: TypeAlias = CclConfig | AlgorithmConfig | Mapping[str, Any] | str | os.PathLike[str] | None
"""A configuration: loaded, or its file (None: as ``load_ccl_config``); or one algorithm's, typed or as a mapping"""


def as_ccl_config(given: CclLike, fallback: Mapping[str, Any] | None = None) -> CclConfig:
    """The configuration that ``given`` means.

    A mapping is what ``ccl.yaml`` has: all of it, or the section of one algorithm, with the ``defaults`` or without,
    over ``fallback``; ``resolve_algorithm_config`` gives one. ConfigError with every problem.
    """
    if isinstance(given, CclConfig):
        return given
    if isinstance(given, AlgorithmConfig):
        return CclConfig(given.place, given.name, (given,))
    if not isinstance(given, Mapping):
        return load_ccl_config(given)
    if "algorithms" in given:
        return ccl_config_of(Document("cfg", dict(given), {}))
    section = dict(fallback or {}) | {key: list(v) if isinstance(v, tuple) else v for key, v in given.items()}
    defaults = {key: section.pop(key) for key in _OF_DEFAULTS if key in section}
    name = defaults.setdefault("algorithm", section.get("module") or "algorithm")
    origin = given.origin if isinstance(given, AlgorithmSettings) else None
    source = "cfg" if origin is None or origin.folder is None else str(origin.folder / "cfg")
    return ccl_config_of(Document(source, {"defaults": defaults, "algorithms": {name: section}}, {}))


def _file(path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        return os.fspath(path)
    return LOCAL_FILE if Path(LOCAL_FILE).exists() else packaged_file()


def packaged_file() -> str:
    """The file that ships with the package."""
    return str(resources.files("kernbench") / "defaults" / LOCAL_FILE)


def _taken_out(section: dict[str, Any]) -> dict[str, Any]:
    """What passes through, taken out of a section, for no model knows it; nor the key that does nothing."""
    section.pop(IDLE_KEY, None)
    return {name: section.pop(name) for name in tuple(section) if name.startswith(PASSED_PREFIX)}


def _not_passable(passed: Mapping[_Section, Mapping[str, Any]]) -> Iterator[Complaint]:
    for path, entries in passed.items():
        for name, value in entries.items():
            if not all(isinstance(item, Scalar) for item in (value if isinstance(value, list) else [value])):
                wanted = "must be a number, a text, true or false, or a list of those"
                yield Complaint((*path, name), f"found {show(value)}, {wanted}")


def _sections(data: Mapping[str, Any]) -> Iterator[tuple[_Section, dict[str, Any]]]:
    """The parts of a file that hold settings, sound or not."""
    algorithms = data.get("algorithms")
    named = algorithms.items() if isinstance(algorithms, dict) else ()
    found = [(("defaults",), data.get("defaults")), *((("algorithms", name), section) for name, section in named)]
    yield from ((path, section) for path, section in found if isinstance(section, dict))


def _broken_rules(document: Document) -> Iterator[Complaint]:
    """What is wrong between entries; asked of all that is there, whatever else is wrong."""
    for path, section in _sections(document.data):
        given = section.get("topology"), document.get(("defaults", "topology"))
        if path[0] == "algorithms" and given == (None, None):
            yield Complaint(path, "missing key 'topology', here or in defaults", at_key=True)
    named, algorithms = document.get(("defaults", "algorithm")), document.get(("algorithms",))
    if isinstance(named, str) and isinstance(algorithms, dict) and named not in algorithms:
        hint = f"{close_to(named, algorithms)}there are: {one_of(algorithms)}"
        yield Complaint(("defaults", "algorithm"), f"no algorithm {named!r}; {hint}")


def _foreign_keys(document: Document) -> Iterator[Complaint]:
    """Keys that would have no effect: those of shipped algorithms here, of the user's own when they are loaded."""
    sections = dict(_sections(document.data))
    defaults, default = sections.pop(("defaults",), {}), _default_name(document)
    for path, section in sections.items():
        module, topology = section.get("module"), section.get("topology", defaults.get("topology"))
        if isinstance(module, str) and isinstance(topology, str) and module in MODULES:
            known = known_keys(module_called(module, path[1]), current_topology_name(topology))
            reaching = {path: section} if path[1] != default else {path: section, ("defaults",): defaults}
            for at, keys in reaching.items():
                foreign = (key for key in keys if passes(key) and key not in known)
                yield from (Complaint((*at, key), foreign_key(path[1], key, known), at_key=True) for key in foreign)


def _default_name(document: Document) -> object:
    """The algorithm that is taken when none is named; None when that is an error."""
    algorithms = document.get(("algorithms",))
    only = next(iter(algorithms)) if isinstance(algorithms, dict) and len(algorithms) == 1 else None
    return document.get(("defaults", "algorithm")) or only


def _chunks_without_slot(document: Document, resolved: Iterable[AlgorithmConfig]) -> Iterator[Complaint]:
    """The pieces of shipped algorithms are messages."""
    for each in resolved:
        size, path = dict(each.passthrough).get("chunk_size"), _where(document, each.name, "chunk_size")
        used = path[0] != "defaults" or each.name == _default_name(document)
        if used and isinstance(size, int) and size > each.slot_size and each.module in MODULES:
            yield Complaint(path, f"found {size}; a message has to fit a slot (slot_size {each.slot_size})")


def _where(document: Document, algorithm: str, key: str) -> tuple[str, ...]:
    """The path of a setting of an algorithm: its own, else that of the defaults."""
    own = ("algorithms", algorithm, key)
    return own if document.get(own) is not None else ("defaults", key)


def _resolved(
    name: str, file: _CclFile, passed: Mapping[_Section, Mapping[str, Any]], document: Document, folder: Path
) -> AlgorithmConfig:
    """The algorithm's own settings over the defaults."""
    values = _said(file.defaults) | _said(file.algorithms[name])
    values.pop("algorithm", None)
    through = {key: values.pop(key) for key in PASSED_KEYS if key in values}
    through |= {**passed.get(("defaults",), {}), **passed["algorithms", name]}
    entries = ((key, tuple(value) if isinstance(value, list) else value) for key, value in sorted(through.items()))
    here = document.place(("algorithms", name))
    return AlgorithmConfig(
        name=name,
        **values,
        passthrough=tuple(entries),
        folder=folder,
        place=f"{here.source}:{here.key[0]}" if here.key[0] else "",
        passed_at=tuple(
            (key, document.problem(Complaint(_where(document, name, key), "", at_key=True))) for key in through
        ),
    )


def _said(section: _Settings) -> dict[str, Any]:
    return {name: value for name, value in section if value is not None}
