"""YAML files as typed values, with the line and column of every problem.

``load_document`` reads a file and ``apply_overrides`` applies ``--set``. ``validate`` returns a frozen model or raises
a ``ConfigError`` with all problems. The code serves every file: the topology, ``ccl.yaml``, bench parameters and sweep
grids.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Generic, NoReturn, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from kernbench.common.complaints import Complaint, Rejected, explain, show
from kernbench.common.errors import ConfigError, Problem, UnreadableFileError
from kernbench.common.files import read_input
from kernbench.common.units import parse_size
from kernbench.common.values import state, value
from kernbench.common.yaml_document import Path, YamlPlace, entry_exists, path_text, read_yaml

__all__ = [
    "CheckedSection",
    "Complaint",
    "ConfigModel",
    "Document",
    "ExtendedModel",
    "Path",
    "Rejected",
    "apply_overrides",
    "check",
    "load_document",
    "parse_document",
    "path_of",
    "path_text",
    "problems_of",
    "read_model",
    "report",
    "validate",
]

# The bounds of these quantities keep simulated time far below the clock's limit.
LEAST_RATE = 1e-6


def _check_not_vanishing(value: float) -> float:
    if value < LEAST_RATE:
        raise ValueError(f"found {value!r}, must be at least {LEAST_RATE:g}")
    return value


Bandwidth = Annotated[float, Field(gt=0, le=1e9), AfterValidator(_check_not_vanishing)]
Rate = Annotated[float, Field(gt=0, le=1e12), AfterValidator(_check_not_vanishing)]
Share = Annotated[float, Field(gt=0, le=1), AfterValidator(_check_not_vanishing)]
Factor = Annotated[float, Field(gt=0, le=1e6), AfterValidator(_check_not_vanishing)]
Length = Annotated[float, Field(ge=0, le=1e9)]
Duration = Annotated[float, Field(ge=0, le=1e12)]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1, le=1 << 50)]

M = TypeVar("M", bound=BaseModel)
_SET_PATH = re.compile(r"[^.\[\]\s]+(?:\.[^.\[\]\s]+|\[\d+\])*")
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_ROOT = (1, 1)


class ConfigModel(BaseModel):
    """Base of every typed section: unknown keys are errors, values are immutable, numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    def as_mapping(self) -> Mapping[str, Any]:
        """Return the section as a mapping by YAML key, with every default.

        Mappings are read-only and lists are tuples, at every level.
        """
        content: Mapping[str, Any] = _read_only(self.model_dump(mode="json"))
        return content


class ExtendedModel(ConfigModel):
    """A section with keys that were added after 0.2.0.

    Plain data of the section omit such a key if it has its default value. Digests of older machines therefore do not
    change, and their sweeps can be resumed.
    """

    later_keys: ClassVar[frozenset[str]]

    @model_serializer(mode="wrap")
    def _leave_out_later_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = dump(self)
        fields = type(self).model_fields
        return {
            key: entry for key, entry in content.items() if key not in self.later_keys or entry != fields[key].default
        }


def _read_only(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({name: _read_only(entry) for name, entry in value.items()})
    return tuple(map(_read_only, value)) if isinstance(value, list) else value


@value
class Document:
    """A parsed file: plain data, and the place of each entry. ``problems`` are the errors of the YAML syntax.

    ``unchanged``: the data of the file before ``--set``; None without changes.
    """

    source: str
    data: dict[str, Any]
    marks: Mapping[Path, YamlPlace]
    problems: tuple[Problem, ...] = ()
    unchanged: dict[str, Any] | None = None

    def get(self, path: Path) -> Any:
        """Return the data at ``path``, or None when there is none."""
        return _entry_at(self.data, path)

    def get_unchanged(self, path: Path) -> Any:
        """Return the data at ``path`` before ``--set``, or None when there was none."""
        return _entry_at(self.data if self.unchanged is None else self.unchanged, path)

    def place(self, path: Path) -> YamlPlace:
        """Return the place of the entry at ``path``, or that of the nearest entry around it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.marks:
                return self.marks[path[:end]]
        return YamlPlace(self.source, _ROOT, _ROOT)

    def problem(self, complaint: Complaint) -> Problem:
        """Return the problem of a complaint: its text with the place of the entry in the file."""
        place = self.place(complaint.path)
        line, column = place.key if complaint.at_key or complaint.path not in self.marks else place.value
        at = path_text(complaint.path)
        return Problem(source=place.source, line=line, column=column, path=at, message=complaint.message)


def _entry_at(data: Any, path: Path) -> Any:
    """Return the entry of ``data`` at ``path``, or None when there is none."""
    for part in path:
        if not entry_exists(data, part):
            return None
        data = data[part]
    return data


@value
class CheckedSection(Generic[M]):
    """The result of checking a section: its model if it is valid, else the complaints."""

    value: M | None
    complaints: tuple[Complaint, ...] = ()


def load_document(path: str | os.PathLike[str]) -> Document:
    """Read and parse a file. Raises ConfigError if it cannot be read, is not UTF-8, or is not a YAML mapping."""
    source = os.fspath(path)
    try:
        text = read_input(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _fail(source, f"not UTF-8 text: byte {error.object[error.start]:#04x}", _find_spot(error))
    except UnreadableFileError as error:
        _fail(source, error.reason)
    return parse_document(text, source)


def _find_spot(error: UnicodeDecodeError) -> tuple[int, int]:
    """Return the line and the column, counted in bytes, of the byte that could not be decoded."""
    before = error.object[: error.start]
    return before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1


def parse_document(text: str, source: str) -> Document:
    """Parse YAML whose root is a mapping; repeated keys become ``problems``.

    Raises ConfigError if the root is anything else.
    """
    content = read_yaml(text, source)
    if content.data is None and not content.problems:
        _fail(source, "the file is empty; a mapping of keys was expected", _ROOT)
    if not isinstance(content.data, dict):
        if not content.problems:
            _fail(source, f"found {show(content.data)}, must be a mapping of keys", _ROOT)
        raise ConfigError(tuple(content.problems))
    return Document(source, content.data, content.places, tuple(content.problems))


def _fail(source: str, message: str, at: tuple[int, int] = (0, 0)) -> NoReturn:
    raise ConfigError((Problem(source=source, line=at[0], column=at[1], path="", message=message),))


def read_model(model: type[M], data: object, context: object = None) -> M:
    """Return ``data`` as a ``model``; texts and booleans are not accepted as numbers, and lists become tuples.

    Pydantic validates the data as JSON, in which values are strict and containers are lenient, as YAML requires.
    Validators receive ``context``. Raises pydantic's ValidationError.
    """
    return model.model_validate_json(json.dumps(data, default=str), strict=True, context=context)


def check(document: Document, model: type[M], at: Path = (), context: object = None) -> CheckedSection[M]:
    """Check the section at ``at`` against ``model`` without raising."""
    data = document.get(at)
    try:
        return CheckedSection(read_model(model, data, context))
    except ValidationError as error:
        complaints = explain(model, data, error)
    return CheckedSection(None, tuple(Complaint((*at, *c.path), c.message, c.at_key) for c in complaints))


def report(document: Document, complaints: Iterable[Complaint]) -> None:
    """Raise ConfigError with the document's problems and the complaints, in file order, if there are any."""
    problems = problems_of(document, complaints)
    if problems:
        raise ConfigError(problems)


def problems_of(document: Document, complaints: Iterable[Complaint]) -> tuple[Problem, ...]:
    """Return the document's problems and the complaints, without duplicates, in file order."""
    problems = dict.fromkeys([*document.problems, *map(document.problem, complaints)])
    return tuple(sorted(problems, key=lambda p: (p.line == 0, p.line, p.column)))


def validate(document: Document, model: type[M], context: object = None) -> M:
    """Return the document as a ``model``. Raises ConfigError with every problem, in file order."""
    checked = check(document, model, context=context)
    report(document, checked.complaints)
    assert checked.value is not None, "a section without complaints has a value"
    return checked.value


def path_of(text: str) -> Path:
    """Return ``a.b[1].c`` as ``("a", "b", 1, "c")``. Raises ValueError if ``text`` is no such path."""
    if not _SET_PATH.fullmatch(text):
        raise ValueError(f"{text!r} is not a path; write it like cube.pe_layout.corners[1]")
    return tuple(int(index) if index else name for index, name in _STEP.findall(text))


def apply_overrides(document: Document, overrides: Iterable[str]) -> Document:
    """Return a copy with each ``path=value`` applied; values are YAML scalars or flow collections (``[NW, NE]``).

    Raises ConfigError for texts that are no overrides. The later validation checks that each path leads to a key.
    """
    edit = _Edit(document.source, deepcopy(document.data), dict(document.marks))
    problems = [problem for text in overrides for problem in edit.apply(text)]
    if problems:
        raise ConfigError(tuple(problems))
    unchanged = document.data if document.unchanged is None else document.unchanged
    return Document(document.source, edit.data, edit.marks, document.problems, unchanged)


@state
class _Edit:
    """A document that ``--set`` is changing."""

    source: str
    data: dict[str, Any]
    marks: dict[Path, YamlPlace]

    def apply(self, text: str) -> list[Problem]:
        source = f"--set {text}"
        name, equals, value_text = text.partition("=")
        content = read_yaml(value_text, source)
        try:
            if not equals:
                raise ValueError("no '='; write path=value, for example cube.hbm.slices=16")
            path = path_of(name.strip())
            if content.problems:
                raise ValueError(f"{value_text!r} is {content.problems[0].message}")
            self._set_entry(path, content.data, source)
        except ValueError as error:
            return [Problem(source=source, line=0, column=0, path="", message=str(error))]
        return []

    def _set_entry(self, path: Path, value: object, source: str) -> None:
        at: Any = self.data
        for end, part in enumerate(path[:-1], start=1):
            _check_entry(at, path[: end - 1], part)
            if isinstance(at, dict) and at.get(part) is None:
                at[part] = {}
                self._mark(path[:end], source)
            at = at[part]
        _check_entry(at, path[:-1], path[-1])
        at[path[-1]] = value
        self.marks = {key: place for key, place in self.marks.items() if key[: len(path)] != path}
        self._mark(path, source)

    def _mark(self, path: Path, source: str) -> None:
        self.marks[path] = YamlPlace(source, (0, 0), (0, 0))


def _check_entry(container: object, path: Path, part: str | int) -> None:
    """Raise ValueError unless ``part`` can be an entry of ``container``, the entry at ``path``."""
    name = path_text(path) or "the file"
    if isinstance(part, str) and not isinstance(container, dict):
        raise ValueError(f"{name} is {show(container)}, which has no key {part!r}")
    if isinstance(part, int) and not isinstance(container, list):
        raise ValueError(f"{name} is {show(container)}, not a list: it has no [{part}]")
    if isinstance(part, int) and isinstance(container, list) and part >= len(container):
        raise ValueError(f"{name} has {len(container)} entries: [0] to [{len(container) - 1}], not [{part}]")
