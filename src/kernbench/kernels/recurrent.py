"""Cells of recurrent layers: all gates of an LSTM or GRU step in one program, forward and backward.

A row of an operand contains its gates side by side. Programs share the rows and compute in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from kernbench.common.dtypes import F32
from kernbench.common.values import value
from kernbench.kernels.shares import blocks, load_rows, share
from kernbench.kernels.tiling import most_elements
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

Gates: TypeAlias = Sequence[Handle]
"""Gates of some rows, (rows, width) each, in f32."""
CellRule: TypeAlias = Callable[..., Sequence[Gates]]
"""A function of ``tl`` and the gates of each operand that returns those of each result. An absent operand is None."""


@value
class RecurrentCell:
    """A cell of ``width`` features. Operands and results are contiguous matrices of gates; a bias has one row."""

    rule: CellRule
    width: int
    operands: tuple[View | None, ...]
    results: tuple[View, ...]

    def run(self, *addresses: int, tl: TLContext) -> None:
        """Compute this program's rows. ``addresses``: of all results, then of the operands that are not None."""
        remaining = iter(addresses)
        results = [view.on(next(remaining)) for view in self.results]
        operands = [None if view is None else view.on(next(remaining)) for view in self.operands]
        widest = max([view.extents[1] for view in (*operands, *results) if view is not None])
        first, rows = share(results[0].extents[0], tl)
        for row, count in blocks(rows, max(1, most_elements(tl) // widest), first):
            gates = [None if view is None else self._load(view, row, count, tl) for view in operands]
            for view, result in zip(results, self.rule(tl, *gates), strict=True):
                for gate, values in enumerate(result):
                    view.tile((row, gate * self.width), values.shape).store(values, tl)

    def _load(self, view: View, row: int, count: int, tl: TLContext) -> Gates:
        """Return the gates of ``count`` rows from ``row`` on, or of the only row."""
        corner, rows = (0, 1) if view.extents[0] == 1 else (row, count)
        columns = range(0, view.extents[1], self.width)
        return [load_rows(view.tile((corner, column), (rows, self.width)), tl) for column in columns]


def _add_gates(gates: Gates, *addends: Gates | None) -> Gates:
    """Add the gates of all operands that are not None."""
    for addend in addends:
        if addend is not None:
            gates = [a + b for a, b in zip(gates, addend, strict=True)]
    return gates


def lstm(
    tl: TLContext, x: Gates, h: Gates, cell: Gates, x_bias: Gates | None, h_bias: Gates | None
) -> tuple[Gates, Gates, Gates]:
    """Return the new h and c of an LSTM, and the gates that backward needs: input, forget, cell, output."""
    i, f, g, o = _add_gates(x, h, x_bias, h_bias)
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), tl.tanh(g), tl.sigmoid(o)
    c = f * cell[0] + i * g
    return [o * tl.tanh(c)], [c], [i, f, g, o]


def lstm_backward(
    tl: TLContext, by_h: Gates | None, by_new: Gates | None, cell: Gates, new_cell: Gates, gates: Gates
) -> tuple[Gates, Gates]:
    """Return the gradients of an LSTM's gates, and of the old c, from those of the new h and c."""
    i, f, g, o = gates
    t = tl.tanh(new_cell[0])
    grad = tl.zeros(t.shape, F32) if by_h is None else by_h[0]
    inner = grad * o * (1.0 - t * t)
    inner = inner if by_new is None else inner + by_new[0]
    slopes = (i * (1.0 - i), f * (1.0 - f), 1.0 - g * g, o * (1.0 - o))
    factors = (inner * g, inner * cell[0], inner * i, grad * t)
    return [factor * slope for factor, slope in zip(factors, slopes, strict=True)], [inner * f]


def gru(
    tl: TLContext, x: Gates, h: Gates, state: Gates, x_bias: Gates | None, h_bias: Gates | None
) -> tuple[Gates, Gates]:
    """Return a GRU's new h, and what backward needs: reset, update, new, old h, and the hidden part of new."""
    (x_r, x_z, x_n), (h_r, h_z, h_n) = _add_gates(x, x_bias), _add_gates(h, h_bias)
    r, z = tl.sigmoid(x_r + h_r), tl.sigmoid(x_z + h_z)
    n = tl.tanh(x_n + r * h_n)
    return [n + z * (state[0] - n)], [r, z, n, state[0], h_n]


def gru_backward(tl: TLContext, grad: Gates, saved: Gates) -> tuple[Gates, Gates, Gates]:  # noqa: ARG001 - as all rules
    """Return the gradients of a GRU's gates of input and of hidden state, and of the old h."""
    (g,), (r, z, n, state, h_n) = grad, saved
    by_z = g * (state - n) * z * (1.0 - z)
    by_n = g * (1.0 - z) * (1.0 - n * n)
    by_r = by_n * h_n * r * (1.0 - r)
    return [by_r, by_z, by_n], [by_r, by_z, by_n * r], [g * z]
