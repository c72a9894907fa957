"""Complaints about entries of a configuration: pydantic's errors, worded as "found X, must be Y".

A complaint has the path of an entry; ``config.Document`` adds its line and column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kernbench.common.errors import close_to
from kernbench.common.field_types import model_at
from kernbench.common.units import unit_of_key
from kernbench.common.values import value
from kernbench.common.yaml_document import Path, entry_exists


@value
class Complaint:
    """A fault at ``path``; ``at_key`` points at the entry's key rather than at its value."""

    path: Path
    message: str
    at_key: bool = False


class Rejected(ValueError):  # noqa: N818 - it says what happened to the entry, like pydantic's own errors
    """Raised by a model's validator for complaints about several entries, or about an entry below the field."""

    def __init__(self, complaints: Iterable[Complaint]) -> None:
        self.complaints = tuple(complaints)
        super().__init__(self.complaints)


def show(value: object) -> str:
    """Return ``value`` as YAML writes it, cut to 60 characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    text = f"[{', '.join(map(show, value))}]" if isinstance(value, list) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def one_line(text: object, longest: int = 300) -> str:
    """Return a text on one line, cut to ``longest`` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def one_of(names: Iterable[object]) -> str:
    """Return the names, separated by commas."""
    return ", ".join(str(name) for name in names)


def explain(model: type[BaseModel], data: object, error: ValidationError) -> list[Complaint]:
    """Return a complaint for every entry of ``error``, the error of validating ``data`` as ``model``."""
    complaints: list[Complaint] = []
    items = [(item, _trim_path(data, item["loc"])) for item in error.errors(include_url=False)]
    previous: Path | None = None
    for item, path in items:
        wrong_shape = item["type"] in _SHAPES
        if (wrong_shape or item["type"] == "too_short") and any(_is_below(other, path) for _, other in items):
            continue  # an error inside the container shows that its type was meant; counts include valid entries only
        if wrong_shape and path == previous:
            complaints[-1] = _add_shape(complaints[-1], item)
        else:
            complaints.extend(c for c in _explain_one(model, data, item) if c not in complaints)
        previous = path if wrong_shape else None
    return complaints


def _is_below(path: Path, other: Path) -> bool:
    """Return True when ``path`` leads to an entry inside the one at ``other``."""
    return len(path) > len(other) and path[: len(other)] == other


def _add_shape(complaint: Complaint, item: ErrorDetails) -> Complaint:
    """Return the complaint with one more type in the list of types that the entry may have."""
    shape = _WORDS[item["type"]](item, complaint.path).removeprefix("must be ")
    return replace(complaint, message=f"{complaint.message}, or {shape}")


def _explain_one(model: type[BaseModel], data: object, item: ErrorDetails) -> Iterator[Complaint]:
    kind = item["type"]
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, Rejected):
        path = _trim_path(data, item["loc"])
        yield from (Complaint((*path, *c.path), c.message, c.at_key) for c in cause.complaints)
    elif kind == "missing":
        yield Complaint(_trim_path(data, item["loc"][:-1]), f"missing key {item['loc'][-1]!r}", at_key=True)
    elif kind == "extra_forbidden":
        yield _explain_unknown_key(model, data, item["loc"])
    else:
        path = _trim_path(data, item["loc"])
        yield Complaint(path, describe_error(item, path), at_key=item["loc"][-1:] == ("[key]",))


def _explain_unknown_key(model: type[BaseModel], data: object, loc: Path) -> Complaint:
    path, key = _trim_path(data, loc), loc[-1]
    owner = model_at(model, path[:-1])
    allowed = tuple(field.alias or name for name, field in owner.model_fields.items()) if owner else ()
    here = f"allowed here: {one_of(allowed)}" if allowed else "no keys are allowed here"
    return Complaint(path, f"unknown key {key!r}; {close_to(key, allowed)}{here}", at_key=True)


def _trim_path(data: object, loc: Path) -> Path:
    """Return the steps of ``loc`` that exist in the data, without pydantic's labels for unions and keys."""
    path: list[str | int] = []
    for part in loc:
        if entry_exists(data, part):
            data = data[part]  # type: ignore[index]
            path.append(part)
    return tuple(path)


def describe_error(item: ErrorDetails, path: Path) -> str:
    """Return one of pydantic's errors in words: what was found at ``path``, and what is allowed."""
    cause = item.get("ctx", {}).get("error")
    if cause is not None and item["type"] in {"value_error", "assertion_error"}:
        return str(cause)
    words = _WORDS.get(item["type"])
    if words is None:
        return f"found {show(item['input'])}, {_reword(item['msg'])}"
    return f"found {show(item['input'])}, {words(item, path)}"


def _reword(message: str) -> str:
    text = message.replace("Input should be", "must be").replace("Input should", "must")
    return text[:1].lower() + text[1:]


def _explain_number(item: ErrorDetails, path: Path) -> str:
    name = next((str(part) for part in reversed(path) if isinstance(part, str)), "")
    unit = unit_of_key(name)
    expected = "a whole number" if item["type"].startswith("int") else "a number"
    return f"must be a plain number, in {unit}" if unit and isinstance(item["input"], str) else f"must be {expected}"


def _explain_literal(item: ErrorDetails, path: Path) -> str:  # noqa: ARG001 - one signature for the table below
    expected = str(item["ctx"]["expected"]).replace(" or ", ", ").replace("'", "")
    hint = close_to(item["input"], expected.split(", "))
    return f"{hint}must be one of: {expected}" if ", " in expected else f"must be {expected}"


def _bound(words: str, key: str) -> Callable[[ErrorDetails, Path], str]:
    return lambda item, _path: f"{words} {item['ctx'][key]:g}"


def _always(words: str) -> Callable[[ErrorDetails, Path], str]:
    return lambda _item, _path: words


def _length(words: str, key: str) -> Callable[[ErrorDetails, Path], str]:
    return lambda item, _path: f"must have {words} {item['ctx'][key]} {'entry' if item['ctx'][key] == 1 else 'entries'}"


_SHAPES = {
    *("int_type", "float_type", "string_type", "bool_type", "literal_error", "enum"),
    *("model_type", "model_attributes_type", "dict_type", "list_type", "tuple_type"),
}
"""Pydantic's error types for an entry of the wrong type: no number, no text, no list …"""

_WORDS: dict[str, Callable[[ErrorDetails, Path], str]] = {
    "greater_than": _bound("must be greater than", "gt"),
    "greater_than_equal": _bound("must be at least", "ge"),
    "less_than": _bound("must be less than", "lt"),
    "less_than_equal": _bound("must be at most", "le"),
    "multiple_of": _bound("must be a multiple of", "multiple_of"),
    "int_type": _explain_number,
    "int_from_float": _explain_number,
    "float_type": _explain_number,
    "finite_number": _always("must be a finite number"),
    "string_type": _always("must be text"),
    "bool_type": _always("must be true or false"),
    "model_type": _always("must be a mapping of keys"),
    "model_attributes_type": _always("must be a mapping of keys"),
    "dict_type": _always("must be a mapping of keys"),
    "list_type": _always("must be a list"),
    "tuple_type": _always("must be a list"),
    "too_short": _length("at least", "min_length"),
    "too_long": _length("at most", "max_length"),
    "literal_error": _explain_literal,
    "enum": _explain_literal,
}
