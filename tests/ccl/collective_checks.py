"""What NumPy makes of the tensors of a collective over SIPs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from algorithm_support import Array, Shards, assert_reduced, assert_same_bits, of_pe

Tensors = list[list[Array]]
"""For each tensor the data of one PE, by rank."""


def assert_collective(
    name: str, before: list[Shards], after: list[Shards], op: str = "sum", passed: Mapping[str, Any] | None = None
) -> None:
    """The tensors have become what ``name`` makes of them: to the bit, reductions up to their rounding."""
    for pe in sorted({coord[1:] for coord in before[0]}):
        CHECKS[name]([of_pe(t, pe) for t in before], [of_pe(t, pe) for t in after], op, passed or {})


def assert_all_reduced(outputs: Sequence[Array], inputs: Sequence[Array], op: str = "sum") -> None:
    """Every rank has the reduction of all, up to its rounding, and all have the same."""
    assert_reduced(outputs, inputs, op)
    assert_same_bits(outputs)


def _all_reduced(before: Tensors, after: Tensors, op: str, _: Mapping[str, Any]) -> None:
    assert_all_reduced(after[0], before[0], op)


def _reduced_to_root(before: Tensors, after: Tensors, op: str, passed: Mapping[str, Any]) -> None:
    root = passed["root"]
    assert_reduced([after[0][root]], before[0], op)
    _same(after[0][:root] + after[0][root + 1 :], before[0][:root] + before[0][root + 1 :])


def _broadcast(before: Tensors, after: Tensors, _op: str, passed: Mapping[str, Any]) -> None:
    _same(after[0], [before[0][passed["root"]]] * len(after[0]))


def _sent(before: Tensors, after: Tensors, _op: str, passed: Mapping[str, Any]) -> None:
    wanted = list(before[0])
    wanted[passed["dst"]] = before[0][passed["src"]]
    _same(after[0], wanted)


def _unchanged(before: Tensors, after: Tensors, _op: str, _: Mapping[str, Any]) -> None:
    _same(after[0], before[0])


def _gathered(before: Tensors, after: Tensors, _op: str, _: Mapping[str, Any]) -> None:
    _same(after[1], [np.concatenate(before[0])] * len(after[1]))


def _scattered(before: Tensors, after: Tensors, op: str, _: Mapping[str, Any]) -> None:
    for rank, x in enumerate(after[1]):
        assert_reduced([x[0]], [blocks[rank] for blocks in before[0]], op)


def _exchanged(before: Tensors, after: Tensors, _op: str, _: Mapping[str, Any]) -> None:
    _same(after[1], [np.stack([blocks[rank] for blocks in before[0]]) for rank in range(len(after[1]))])


def _same(found: list[Array], wanted: list[Array]) -> None:
    assert [x.tobytes() for x in found] == [x.tobytes() for x in wanted]


CHECKS: dict[str, Callable[[Tensors, Tensors, str, Mapping[str, Any]], None]] = {
    "sip_allreduce": _all_reduced,
    "reduce": _reduced_to_root,
    "broadcast": _broadcast,
    "send_recv": _sent,
    "barrier": _unchanged,
    "all_gather": _gathered,
    "reduce_scatter": _scattered,
    "all_to_all": _exchanged,
    "exchange": _exchanged,
}
