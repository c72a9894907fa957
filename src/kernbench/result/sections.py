"""The outcome of a run as sections: typed parts, each computed when it is first asked for.

A section is registered once, with its type and the function that computes it. JSON, columns of sweeps, comparisons, the
terminal and pages are derived from the type. A room above registers a section of its own in the same way.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from kernbench.common import config
from kernbench.common.complaints import describe_error, show
from kernbench.common.errors import ExplanationError, InputError, UnreadableFileError, text_of
from kernbench.common.figures import dataclass_in, figure, figure_of, figures_of, hints_of, keys_of, to_plain
from kernbench.common.files import parse_json, read_input
from kernbench.common.values import value
from kernbench.observe.guard import guarded
from kernbench.result.columns import Cell, CellRow, FigureColumn, columns_of, flatten
from kernbench.result.simulation import FinishedRun, RunFailure, failure_of
from kernbench.result.table import Table, table_of

T = TypeVar("T")


@value
class Absence:
    """The reason why a run has no content of a section."""

    reason: str


@value
class Unread:
    """The content of a section that a later version of kernbench wrote, as it stands in its document."""

    version: int
    part: Mapping[str, Any]


@value
class NamedFigure:
    """A figure of a run: its column in sweeps, its value, and its description."""

    name: str = figure("the column in sweeps and comparisons")
    value: Cell = figure("the number or the text")
    about: str = figure("what it is")


@value(kw_only=True, eq=False)
class Section(Generic[T]):
    """A kind of section.

    - ``form``: the type of its content
    - ``compute``: the function that returns the content of a run, or the reason why there is none
    - ``version``: increased when a key changes its meaning
    - ``inline``: the figures are keys of the document itself; ``needed``: every document has them
    - ``columns``, ``row``: the columns of sweeps with their types, and their cells; by default derived from the type
    """

    name: str
    form: Any
    compute: Callable[[FinishedRun], T | Absence | RunFailure]
    version: int = 1
    inline: bool = False
    needed: bool = False
    columns: Mapping[str, type] | None = None
    row: Callable[[RunOutcome], CellRow] | None = None

    @property
    def all_columns(self) -> Mapping[str, FigureColumn]:
        """The columns of sweeps and comparisons, by name."""
        if self.columns is not None:
            return {name: FigureColumn(name, kind) for name, kind in self.columns.items()}
        return {column.name: column for column in columns_of(self.form, "" if self.inline else self.name)}

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the document that belong to the section."""
        if not self.inline:
            return (self.name,)
        return tuple(entry.key for entry in figures_of(self.form) if entry.forms.stored)


MAIN = "__main__"
_BUILT_IN: dict[str, Section[Any]] = {}
_ADDED: dict[str, Section[Any]] = {}


def register(section: Section[T], *, built_in: bool = False) -> Section[T]:
    """Add a section to the outcomes of all runs. A section of the same type replaces the earlier one.

    ``built_in``: the section comes before those that rooms above and users add. Raises ValueError if another section
    has this name, or a key of the document that belongs to it.
    """
    if built_in:
        _BUILT_IN[section.name] = section
        return section
    earlier = _ADDED.get(section.name)
    if earlier is None or _name_form(earlier) != _name_form(section):
        taken = {key for other in sections() for key in (other.name, *other.keys, f"{other.name}{FAILED}")}
        for key in (section.name, *section.keys):
            if key in {*taken, VERSIONS}:
                raise ValueError(f"a section {section.name!r} exists already, or the document has the key {key!r}")
    _ADDED[section.name] = section
    return section


def _name_form(section: Section[Any]) -> str:
    """Return the name of a section's type, which is the same when its file or notebook cell runs again."""
    form = section.form
    return f"{form.__module__}.{form.__qualname__}" if isinstance(form, type) else str(form)


@contextmanager
def registered(section: Section[T]) -> Iterator[Section[T]]:
    """Register a section for the duration of the block."""
    register(section)
    try:
        yield section
    finally:
        del _ADDED[section.name]


def sections() -> tuple[Section[Any], ...]:
    """Return all sections: the built-in ones, then the others, each in the order of their registration."""
    return (*_BUILT_IN.values(), *_ADDED.values())


def list_modules() -> tuple[str, ...]:
    """Return the modules of users that added sections. Another process imports them to have these sections.

    ``__main__`` is in the list, although no other process can import it. A bench's file is not: it is loaded anyway.
    """
    names = dict.fromkeys(section.form.__module__ for section in _ADDED.values() if isinstance(section.form, type))
    return tuple(name for name in names if name == MAIN or _is_importable(name))


def _is_importable(module: str) -> bool:
    is_own = module.startswith(f"{__name__.partition('.')[0]}.")
    return not is_own and module in sys.modules and sys.modules[module].__spec__ is not None


def built_in_sections() -> tuple[Section[Any], ...]:
    """Return the sections of every run that are registered so far."""
    return tuple(_BUILT_IN.values())


def figures_table(figures: Sequence[NamedFigure]) -> Table[NamedFigure]:
    """Return the table of figures, for the terminal and for notebooks."""
    return table_of("figures", figures, NamedFigure, title="Figures  (columns of sweeps)")


class RunOutcome:
    """The outcome of a run: its sections, each computed, or read from ``document``, when it is first asked for.

    ``run``: the finished run; None for an outcome that was loaded or unpickled. ``document``: the document of a loaded
    run. ``origin``: its file, for errors.
    """

    def __init__(
        self, run: FinishedRun | None = None, document: Mapping[str, Any] | None = None, origin: str = ""
    ) -> None:
        self.run = run
        self.document: Mapping[str, Any] = {} if document is None else document
        self.origin = origin
        self._contents: dict[str, Any] = {}

    def find(self, section: Section[T]) -> T | Absence | Unread | RunFailure:
        """Return the content of a section, or the reason why there is none."""
        if section.name not in self._contents:
            self._contents[section.name] = self._compute(section)
        content: T | Absence | Unread | RunFailure = self._contents[section.name]
        return content

    def _compute(self, section: Section[T]) -> T | Absence | Unread | RunFailure:
        if self.run is None:
            return self._read(section)
        try:
            with guarded(section.name):
                content = section.compute(self.run)
                if section.name in _ADDED and not isinstance(content, Absence | RunFailure):
                    read_plain(section.form, to_plain(content))
                return content
        except ExplanationError as error:
            return failure_of(error)
        except Exception as fault:
            if section.name not in _ADDED:
                raise
            # The error is in a file of the user, which the guard lets pass.
            return failure_of(ExplanationError(f"{section.name} failed: {type(fault).__name__}: {text_of(fault)}"))

    def _read(self, section: Section[T]) -> T | Absence | Unread | RunFailure:
        """Read a section from the document, also one of another version. Raises InputError for another form."""
        document = self.document
        reason = document.get(f"{section.name}{FAILED}")
        if reason is not None:
            return RunFailure(ExplanationError.__name__, str(reason), str(reason))
        part = {key: document[key] for key in section.keys if key in document}
        if not part and not section.needed:
            return Absence("its file has none")
        versions = document.get(VERSIONS)
        version = versions.get(section.name) if isinstance(versions, Mapping) else None
        if isinstance(version, int) and version > section.version:
            return Unread(version, part)
        try:
            content: T = read_plain(
                section.form, part if section.inline else part[section.name], section.keys[:1] * (not section.inline)
            )
        except FormError as error:
            raise InputError(
                f"{self.origin}: not an output of {COMMAND}: {error}; write it again with that command"
            ) from error
        return content

    def get(self, section: Section[T]) -> T | None:
        """Return the content of a section, or None if there is none."""
        content = self.find(section)
        return None if isinstance(content, Absence | Unread | RunFailure) else content

    def __getitem__(self, section: Section[T]) -> T:
        content = self.find(section)
        if isinstance(content, RunFailure):
            raise content.as_error()
        if isinstance(content, Absence):
            raise InputError(f"this run has no {section.name}, since {content.reason}")
        if isinstance(content, Unread):
            why = f"a later version of kernbench wrote it (version {content.version})"
            raise InputError(": ".join(filter(None, (self.origin, section.name, why))))
        return content

    def with_content(self, section: Section[T], content: T | Absence) -> RunOutcome:
        """Return the outcome with another content of a section."""
        outcome = RunOutcome(self.run, self.document, self.origin)
        outcome._contents = {**self._contents, section.name: content}
        return outcome

    def has(self, name: str) -> bool:
        """Return True if a section of this name was computed or is in the document."""
        return name in self._contents or name in self.document

    def to_document(self) -> dict[str, Any]:
        """Return all contents as plain data: what was found first, the configuration last."""
        known = {key for section in sections() for key in (*section.keys, f"{section.name}{FAILED}", VERSIONS)}
        document = {key: content for key, content in self.document.items() if key not in known}
        versions = self._list_unknown_versions()
        for section in sections():
            content = self.find(section)
            if isinstance(content, Unread):
                document |= content.part
                versions[section.name] = content.version
            elif isinstance(content, RunFailure):
                document[f"{section.name}{FAILED}"] = content.text
            elif not isinstance(content, Absence):
                plain = to_plain(content)
                document |= plain if section.inline else {section.name: plain}
                versions |= {section.name: section.version} if section.version > 1 else {}
        document |= {VERSIONS: versions} if versions else {}
        ordered = [key for key in _FIRST if key in document]
        ordered += [key for key in document if key not in {*_FIRST, *_LAST}]
        return {key: document[key] for key in [*ordered, *(key for key in _LAST if key in document)]}

    def _list_unknown_versions(self) -> dict[str, int]:
        """Return the versions of sections that no reader here knows, by name."""
        versions, names = self.document.get(VERSIONS), {section.name for section in sections()}
        if not isinstance(versions, Mapping):
            return {}
        return {name: version for name, version in versions.items() if name not in names}

    def to_row(self) -> CellRow:
        """Return the figures as one row of a sweep, by column."""
        row: CellRow = {}
        for section in sections():
            if section.row is not None:
                row |= section.row(self)
            elif (content := self.get(section)) is not None:
                row |= flatten(content, "" if section.inline else section.name)
        return row

    def figures(self) -> tuple[NamedFigure, ...]:
        """Return the figures of the sections whose columns are derived, for views that show any section."""
        named = []
        for section in sections():
            if section.columns is None and (content := self.get(section)) is not None:
                columns = section.all_columns
                cells = flatten(content, "" if section.inline else section.name)
                named += [NamedFigure(name, cell, columns[name].about) for name, cell in cells.items()]
        return tuple(named)

    def __getstate__(self) -> dict[str, Any]:
        contents = {section.name: self.find(section) for section in sections()}
        return {**vars(self), "run": None, "_contents": {**self._contents, **contents}}


COMMAND = "kernbench run --json"
"""The command that writes documents of runs"""
FAILED = "_failed"
"""End of the key of a section that could not be computed; its value is the reason"""
VERSIONS = "section_versions"
"""Key of the versions of sections above 1"""
_FIRST = (
    *("status", "verdict", "error", "place", "bench", "device", "sim_ns", "verification", "phases", "kernels"),
    *("launches", "engines", "traffic", "memories", "queues", "events", "transfers", "records", "under_way", "data"),
    *(
        "leaked",
        "left",
        "used",
        "said",
        "translation",
        "unmodelled",
        "operators",
        "compiled",
        "remarks",
        "load",
        "printed",
    ),
    *("frontends", "findings", "advice", "explanation", "explanation_failed"),
)
_LAST = ("params", "topology", "digest", "configuration")


def read_outcome(path: Path) -> RunOutcome:
    """Return the outcome of a run from a file. Sections are read when they are asked for.

    Raises InputError, which names the command that writes such a file, for a file that is no document.
    """
    try:
        document = parse_json(read_input(path))
    except UnreadableFileError as error:
        raise InputError(f"{path}: cannot be read: {error.why}; write it with: {COMMAND}") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}; write it with: {COMMAND}") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: not an output of {COMMAND}: found {show(document)}, must be a mapping")
    return RunOutcome(document=document, origin=str(path))


class FormError(ValueError):
    """A document that does not have the form of its type: the place in the document, and the fault."""

    def __init__(self, path: config.Path, message: str) -> None:
        super().__init__(path, message)
        self.path, self.message = path, message

    def __str__(self) -> str:
        return f"{config.path_text(self.path)}: {self.message}" if self.path else self.message


def read_plain(kind: Any, document: Any, path: config.Path = ()) -> Any:
    """Return the result of type ``kind`` that a document, written by ``to_plain``, describes; ``path``: its place.

    A missing key has the default of its field, an unknown key has no effect, so other versions are accepted.
    Raises FormError for a missing key without a default, and for a value of another type.
    """
    if is_dataclass(kind):
        return document if type(document) is kind else _read_mapping(kind, document, path)
    arguments = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return _read_union(kind, document, path)
    if get_origin(kind) is tuple and len(arguments) == 2 and arguments[1] is ...:
        if not isinstance(document, list | tuple):
            raise FormError(path, f"found {show(document)}, must be a list")
        return tuple(read_plain(arguments[0], entry, (*path, at)) for at, entry in enumerate(document))
    if kind is float and document in _UNBOUNDED:
        return float(document)
    return _read_leaf(kind, document, path)


def _read_leaf(kind: Any, document: Any, path: config.Path) -> Any:
    try:
        return _adapter(kind).validate_python(document, strict=kind in _SCALARS)
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        raise FormError((*path, *item["loc"]), describe_error(item, path)) from error


_SCALARS = (str, int, float, bool)
_UNBOUNDED = ("nan", "inf", "-inf")
"""Texts of JSON in place of numbers that it does not have"""


def _read_union(hint: Any, document: Any, path: config.Path) -> Any:
    """Read a value of the first type whose needed keys the document has; None for nothing."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    if document is None and len(kinds) < len(get_args(hint)):
        return None
    if len(kinds) > 1 and isinstance(document, Mapping):
        kinds = [kind for kind in kinds if is_dataclass(kind) and _needed_keys(kind) <= document.keys()] or kinds
    if len(kinds) == 1 or is_dataclass(kinds[0]):
        return read_plain(kinds[0], document, path)
    return _read_leaf(hint, document, path)


def _needed_keys(kind: Any) -> set[str]:
    return {figure_of(declared).key or declared.name for declared in fields(kind) if _has_no_default(declared)}


def _read_mapping(kind: Any, document: Any, path: config.Path) -> Any:
    if not isinstance(document, Mapping):
        raise FormError(path, f"found {show(document)}, must be a mapping")
    hints = hints_of(kind)
    arguments = {}
    for declared in fields(kind):
        forms = figure_of(declared)
        if not forms.stored or not declared.init:
            continue
        hint, key = hints[declared.name], forms.key or declared.name
        key = key if key in document or not forms.fallback else forms.fallback
        if forms.inline:
            inner = dataclass_in(hint)
            is_absent = all(document.get(key) is None for key in keys_of(inner)) and hint is not inner
            arguments[declared.name] = None if is_absent else _read_mapping(inner, document, path)
        elif key in document:
            arguments[declared.name] = read_plain(hint, document[key], (*path, key))
        elif _has_no_default(declared):
            raise FormError(path, f"missing key {key!r}")
    return kind(**arguments)


def _has_no_default(declared: Field[Any]) -> bool:
    return declared.default is MISSING and declared.default_factory is MISSING


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)
