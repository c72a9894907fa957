"""A schedule as data: the commands that its steps are."""

from __future__ import annotations

from typing import Any, NamedTuple

from kernbench.common.dtypes import DType


class Op(NamedTuple):
    """One command of a schedule: step number ``line`` of it, or a part of that.

    ``to``: the number of the value that it makes, ``reads``: of those it uses, ``drops``: of those nobody uses after.
    ``what``: the direction, the operator, or the tensor; ``at``: which of the PE's accesses a load or a store is;
    ``number``: a third operand.
    """

    does: str
    line: int
    to: int
    reads: tuple[int, ...]
    what: Any
    shape: tuple[int, ...]
    dtype: DType
    nbytes: int
    at: int
    number: float | None
    drops: tuple[int, ...]
