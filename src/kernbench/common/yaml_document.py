"""YAML text as plain data, with the line and column of every key and item.

PyYAML's composer returns nodes with positions, and its constructor drops the positions. This file therefore reads the
nodes into data and a map from path to place. Two differences from PyYAML's constructor catch typing errors: a repeated
key is a problem, and ``1e3`` is a number, as in YAML 1.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from typing import Any

import yaml

from kernbench.common.errors import Problem
from kernbench.common.values import state, value

Path = tuple[str | int, ...]

# Aliases may repeat parts of a file. A file with more entries than this number is a mistake or an attack.
MAX_ENTRIES = 50_000
# Most keys and values of a text before aliases are expanded: all their nodes are in memory at once, 1 kB each.
MAX_NODES = 200_000
# Every open bracket makes the parser slower.
MAX_DEPTH = 200
_TOO_DEEP = "nested too deeply to read"
# libyaml parses ahead of the events it returns, and newer versions have a limit of their own.
_TOO_DEEP_FOR_LIBYAML = "exceeded maximum nesting depth"
LOADER: type[yaml.SafeLoader] = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader  # type: ignore[assignment]
_EXPONENT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+")
_MERGE, _TEXT = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str"
_CONTAINERS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@value
class YamlPlace:
    """The place of an entry: (line, column) of its key and of its value, counted from 1; line 0 if it has no line."""

    source: str
    key: tuple[int, int]
    value: tuple[int, int]


@state
class YamlContent:
    """The content of a text: its data, the place of every entry, and the errors of its YAML syntax."""

    data: Any = None
    places: dict[Path, YamlPlace] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def path_text(path: Path) -> str:
    """Return ``("a", "b", 1, "c")`` as ``a.b[1].c``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def entry_exists(container: object, part: str | int) -> bool:
    """Return True if plain data has an entry ``part``: a key of a mapping or an index of a list."""
    if isinstance(container, dict):
        return part in container
    return isinstance(container, list) and isinstance(part, int) and part < len(container)


def read_yaml(text: str, source: str) -> YamlContent:
    """Parse a YAML document; syntax errors become ``problems`` and are never raised."""
    content = YamlContent()
    try:
        _check_size(text)
        loader = LOADER(text)
        root = loader.get_single_node()
        if root is not None:
            content.data = _NodeReader(loader, source, content).read(root, ())
    except yaml.YAMLError as error:
        content.problems.append(_make_problem(error, text, source))
    except RecursionError:
        content.problems.append(Problem(source=source, line=1, column=1, path="", message=_TOO_DEEP))
    return content


def _check_size(text: str) -> None:
    """Raise MarkedYAMLError if ``text`` has too many nodes or is nested too deeply; read only one event at a time."""
    nodes = depth = 0
    for event in yaml.parse(text, LOADER):
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if nodes > MAX_NODES or depth > MAX_DEPTH:
            problem = f"more than {MAX_NODES:,} keys and values" if nodes > MAX_NODES else _TOO_DEEP
            mark: Any = event.start_mark
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _NodeReader:
    """The conversion of composed nodes to data, which also records places and problems."""

    def __init__(self, loader: yaml.SafeLoader, source: str, content: YamlContent) -> None:
        self.loader, self.source, self.content = loader, source, content
        self.open: set[int] = set()

    def read(self, node: yaml.Node, path: Path) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._read_scalar(node, path)
        self._guard(node, path)
        self.open.add(id(node))
        data = self._read_mapping(node, path) if isinstance(node, yaml.MappingNode) else self._read_sequence(node, path)
        self.open.discard(id(node))
        return data

    def _guard(self, node: yaml.Node, path: Path) -> None:
        if id(node) in self.open:
            raise yaml.MarkedYAMLError(problem="an alias that contains itself", problem_mark=node.start_mark)
        if len(self.content.places) > MAX_ENTRIES:
            problem = f"more than {MAX_ENTRIES} entries once aliases are written out"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        if node.tag not in _CONTAINERS:
            self._complain(node, path, f"unknown tag {node.tag}")

    def _read_mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for name, key, entry in self._plain_entries(node, path):
            if name in data:
                first = self.content.places[(*path, name)].key[0]
                self._complain(key, (*path, name), f"duplicate key {name!r}; line {first} gives it already")
            else:
                data[name] = self._read_entry((*path, name), key, entry)
        for name, key, entry in self._merge_entries(node, path):
            if name not in data:
                data[name] = self._read_entry((*path, name), key, entry)
        return data

    def _read_sequence(self, node: yaml.Node, path: Path) -> list[Any]:
        return [self._read_entry((*path, index), item, item) for index, item in enumerate(node.value)]

    def _read_entry(self, path: Path, key: yaml.Node, value: yaml.Node) -> Any:
        self.content.places[path] = YamlPlace(self.source, _find_spot(key.start_mark), _find_spot(value.start_mark))
        return self.read(value, path)

    def _plain_entries(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        for key, entry in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._complain(key, path, "a key must be a name, not a list or a mapping")
            elif key.tag != _MERGE:
                yield key.value, key, entry

    def _merge_entries(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Yield the entries of the mappings that ``<<`` names; the first entry of a key wins."""
        merged = (entry for key, entry in node.value if key.tag == _MERGE)
        for entry in merged:
            for source in entry.value if isinstance(entry, yaml.SequenceNode) else [entry]:
                if isinstance(source, yaml.MappingNode):
                    yield from self._plain_entries(source, path)
                else:
                    self._complain(source, path, "<< takes a mapping or a list of mappings")

    def _read_scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        if node.tag == _TEXT and not node.style and _EXPONENT.fullmatch(node.value):
            return float(node.value)
        try:
            return self.loader.construct_object(node)
        except yaml.MarkedYAMLError:
            self._complain(node, path, f"unknown tag {node.tag}")
        except ValueError as error:
            shown = node.value if len(node.value) <= 60 else f"{node.value[:57]}..."
            self._complain(node, path, f"found {shown!r}: {error}")
        return None

    def _complain(self, node: yaml.Node, path: Path, message: str) -> None:
        line, column = _find_spot(node.start_mark)
        at = path_text(path)
        self.content.problems.append(
            Problem(source=self.source, line=line, column=column, path=at, message=message),
        )


def _find_spot(mark: Any) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1


def _make_problem(error: yaml.YAMLError, text: str, source: str) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        line, column = _find_spot(error.problem_mark)
        if error.problem == _TOO_DEEP_FOR_LIBYAML:
            return Problem(source=source, line=line, column=column, path="", message=_TOO_DEEP)
        begun = f" from line {error.context_mark.line + 1}" if error.context_mark is not None else ""
        context = f" ({error.context}{begun})" if error.context else ""
        message = f"not YAML: {error.problem}{context}" if isinstance(error, _SYNTAX) else str(error.problem)
        return Problem(source=source, line=line, column=column, path="", message=message)
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1
        message = f"not YAML: a character that no text file has ({text[error.position : error.position + 1]!r})"
        return Problem(source=source, line=line, column=column, path="", message=message)
    return Problem(source=source, line=1, column=1, path="", message=f"not YAML: {error}")


_SYNTAX = (yaml.scanner.ScannerError, yaml.parser.ParserError, yaml.composer.ComposerError)
