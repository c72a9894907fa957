"""In what two sweeps differ, one of which was to go on where the other stopped: by axis, and by parameter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from kernbench.evaluation.sweep_measure import flat_configuration

GRID = "grid"
# The digest of what "configuration" says in full.
MACHINE = "machine"
# Parts that are said parameter by parameter, and what stands before the paths.
_SECTIONS: Mapping[str, str] = {"configuration": "", "set": "set ", "ccl": "ccl."}
LONGEST_VALUE = 80
MOST_VALUES = 8


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not the same in two identities, as sentences, axes of the grid first."""
    found = list(_axes(before.get(GRID), now.get(GRID)))
    by_path = {key for key in _SECTIONS if isinstance(before.get(key), dict) and isinstance(now.get(key), dict)}
    was, is_now = _by_parameter(before, by_path), _by_parameter(now, by_path)
    for key in {**was, **is_now}:
        if key not in was:
            found.append(f"{key} is new: {_short(is_now[key])}")
        elif key not in is_now:
            found.append(f"{key} is gone, it was {_short(was[key])}")
        elif _text(was[key]) != _text(is_now[key]):
            found.append(f"{key} was {_short(was[key])}, is {_short(is_now[key])}")
    return found


def _by_parameter(identity: Mapping[str, Any], by_path: Set[str]) -> dict[str, Any]:
    """An identity without its grid, in which sections ``by_path`` are not one value but many."""
    plain: dict[str, Any] = {}
    for key, value in identity.items():
        if key in by_path:
            plain |= {f"{_SECTIONS[key]}{path}": each for path, each in flat_configuration(value).items()}
        elif key not in (GRID, MACHINE):
            plain[key] = value
    return plain


def _axes(before: Any, now: Any) -> Iterator[str]:
    """How the axes of a grid differ. Their order is the order of the points."""
    was = before if isinstance(before, dict) else {}
    is_now = now if isinstance(now, dict) else {}
    for axis in {**was, **is_now}:
        if axis not in was:
            yield f"axis {axis} is new: {_values(is_now[axis])}"
        elif axis not in is_now:
            yield f"axis {axis} is gone, it had {_values(was[axis])}"
        elif _text(was[axis]) != _text(is_now[axis]):
            yield f"axis {axis} has other values: {_changed(was[axis], is_now[axis])}"
    common = [[axis for axis in side if axis in was and axis in is_now] for side in (was, is_now)]
    if common[0] != common[1]:
        yield f"the axes were in the order {', '.join(common[0])}, are {', '.join(common[1])}"


def _changed(before: Any, now: Any) -> str:
    was, is_now = ([_text(each) for each in side] if isinstance(side, list) else [] for side in (before, now))
    new, gone = [each for each in is_now if each not in was], [each for each in was if each not in is_now]
    said = [f"{_listed(values)} {word}" for values, word in ((new, "added"), (gone, "removed")) if values]
    return ", ".join(said) or f"the same in another order: it had {_listed(was)}, has {_listed(is_now)}"


def _values(values: Any) -> str:
    return _listed([_text(each) for each in values]) if isinstance(values, list) else _short(values)


def _listed(texts: Sequence[str]) -> str:
    shown = texts if len(texts) <= MOST_VALUES else [*texts[: MOST_VALUES - 1], "…", texts[-1]]
    return ", ".join(_cut(each) for each in shown)


def _text(value: object) -> str:
    """As the file has it: 1, 1.0 and true are equal, and three different texts."""
    return json.dumps(value)


def _short(value: object) -> str:
    return _cut(_text(value))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."
