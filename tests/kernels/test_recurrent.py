"""Cells of recurrent layers against their formulas; their gradients against differences of the formulas' results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from reference import Array, Machine, assert_near, normal, wide

from kernbench.common.dtypes import F32
from kernbench.kernels.recurrent import CellRule, RecurrentCell, gru, gru_backward, lstm, lstm_backward
from kernbench.kernels.view import View

WIDTH, ROWS, STEP = 5, 7, 1e-6


def run_cell(rule: CellRule, operands: list[Array | None], gates: tuple[int, ...]) -> list[Array]:
    """Return the results, which have ``gates`` gates each."""
    machine = Machine()
    places = [None if x is None else View.row_major(machine.put(x), x.shape, F32) for x in operands]
    shapes = [(ROWS, n * WIDTH) for n in gates]
    results = [View.row_major(machine.room(shape, F32), shape, F32) for shape in shapes]
    cell = RecurrentCell(rule, WIDTH, tuple(places), tuple(results))
    addresses = [view.address for view in (*results, *places) if view is not None]
    machine.run(lambda *, tl: cell.run(*addresses, tl=tl), grid=(2, 2))
    return [machine.get(view.address, view.extents, F32) for view in results]


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def lstm_of(x: Array, h: Array, cell: Array) -> tuple[Array, Array]:
    i, f, g, o = np.split(x + h, 4, 1)
    new_cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(new_cell), new_cell


def gru_of(x: Array, h: Array, state: Array) -> Array:
    (x_r, x_z, x_n), (h_r, h_z, h_n) = np.split(x, 3, 1), np.split(h, 3, 1)
    z, n = sigmoid(x_z + h_z), np.tanh(x_n + sigmoid(x_r + h_r) * h_n)
    return np.asarray(n + z * (state - n))


def slopes(loss: Callable[[Array], Array], x: Array) -> Array:
    """Return the gradient of ``loss`` (rows, width) by the gates of ``x``. Features do not mix."""
    blocks = []
    for first in range(0, x.shape[1], WIDTH):
        step = np.zeros(x.shape)
        step[:, first : first + WIDTH] = STEP
        blocks.append((loss(x + step) - loss(x - step)) / (2 * STEP))
    return np.concatenate(blocks, 1)


def operands(n_gates: int) -> list[Array]:
    """Return gates of input and hidden state, a state, a bias of one row, and two gradients of results."""
    rng, gates = np.random.default_rng(n_gates), n_gates * WIDTH
    shapes = ((ROWS, gates), (ROWS, gates), (ROWS, WIDTH), (1, gates), (ROWS, WIDTH), (ROWS, WIDTH))
    return [normal(rng, shape, F32) for shape in shapes]


@pytest.mark.parametrize("by_new_cell", [False, True])
def test_lstm(by_new_cell: bool) -> None:
    x, h, cell, bias, by_h, by_c = operands(4)
    wide_x, wide_h, wide_cell = wide(x), wide(h) + wide(bias), wide(cell)
    result, new_cell, gates = run_cell(lstm, [x, h, cell, None, bias], (1, 1, 4))
    for values, wanted in zip((result, new_cell), lstm_of(wide_x, wide_h, wide_cell), strict=True):
        assert_near(values, wanted, magnitude=1.0)

    def loss(x: Array, cell: Array) -> Array:
        new_h, new_c = lstm_of(x, wide_h, cell)
        return np.asarray(wide(by_h) * new_h + wide(by_c) * new_c * by_new_cell)

    gradients = run_cell(lstm_backward, [by_h, by_c if by_new_cell else None, cell, new_cell, gates], (4, 1))
    assert_near(gradients[0], slopes(lambda x: loss(x, wide_cell), wide_x), magnitude=1.0)
    assert_near(gradients[1], slopes(lambda cell: loss(wide_x, cell), wide_cell), magnitude=1.0)


def test_gru() -> None:
    x, h, state, bias, grad, _ = operands(3)
    inputs = [wide(x), wide(h) + wide(bias), wide(state)]
    result, saved = run_cell(gru, [x, h, state, None, bias], (1, 5))
    assert_near(result, gru_of(*inputs), magnitude=1.0)
    gradients = run_cell(gru_backward, [grad, saved], (3, 3, 1))
    for place, gradient in enumerate(gradients):

        def loss(x: Array, place: int = place) -> Array:
            return wide(grad) * gru_of(*[*inputs[:place], x, *inputs[place + 1 :]])

        assert_near(gradient, slopes(loss, inputs[place]), magnitude=1.0)
