"""Recurrent layers: LSTM and GRU cells, with one launch for all gates of a step, and packed sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from kernbench.common.dtypes import F32
from kernbench.common.errors import InputError
from kernbench.frontends.torch.launches import dtype_of, launch
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.tensor import AhbmTensor, new, sip_of
from kernbench.kernels.shares import blocks, load_rows, share
from kernbench.kernels.tiling import most_elements
from kernbench.kernels.view import View

aten = torch.ops.aten
CellBody = Callable[..., Sequence[Any]]


def _launch_cell(name: str, body: CellBody, width: int, ins: Sequence[Any], outs: Sequence[Tensor]) -> None:
    """Launch a cell. A row of an operand contains its gates side by side, ``width`` elements each, in f32.

    ``body(tl, *operands)`` gets each of ``ins`` as a list of its gates. A vector is treated as a matrix of one row,
    and None stays None. ``body`` returns a list of gates for each of ``outs``, which are contiguous.
    """
    given = [None if x is None else x.contiguous() for x in ins]
    rows = outs[0].shape[0]
    matrices = [None if x is None else x.reshape(-1, x.shape[-1]) for x in given]
    layouts = [None if x is None else View.row_major(0, tuple(x.shape), dtype_of(x)) for x in matrices]

    def program(*addresses: int, tl: Any) -> None:
        rest = iter(addresses[len(outs) :])
        at = [None if x is None else next(rest) for x in given]
        first, mine = share(rows, tl)
        largest = max(x.shape[-1] for x in (*given, *outs) if x is not None)
        for row, count in blocks(mine, max(1, most_elements(tl) // largest), first):
            operands: list[Any] = []
            for layout, address in zip(layouts, at, strict=True):
                if layout is None or address is None:
                    operands.append(None)
                    continue
                first_row, many = (0, 1) if layout.extents[0] == 1 else (row, count)
                gates = range(0, layout.extents[1], width)
                tiles = [layout.on(address).tile((first_row, gate), (many, width)) for gate in gates]
                operands.append([load_rows(tile, tl) for tile in tiles])
            for out, address, result in zip(outs, addresses, body(tl, *operands), strict=False):
                view = View.row_major(address, tuple(out.shape), dtype_of(out))
                for gate, y in enumerate(result):
                    view.tile((row, gate * width), y.shape).store(y, tl)

    if rows:
        launch(name, program, outs, [x for x in given if x is not None])


def _sum_of(gates: Sequence[Any], *others: Any) -> list[Any]:
    """Add the gates of all operands that are not None."""
    found = list(gates)
    for each in others:
        found = found if each is None else [a + b for a, b in zip(found, each, strict=True)]
    return found


def _like(x: Tensor, rows: int, width: int) -> Tensor:
    return new((rows, width), x.dtype, sip_of(x))


def _lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new h and c, and the gates that backward needs: input, forget, cell, output."""
    rows, width = cx.shape
    hy, cy, kept = _like(cx, rows, width), _like(cx, rows, width), _like(cx, rows, 4 * width)

    def body(tl: Any, x: Any, h: Any, old: Any, b: Any, d: Any) -> Sequence[Any]:
        i, f, g, o = _sum_of(x, h, b, d)
        i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), tl.tanh(g), tl.sigmoid(o)
        c = f * old[0] + i * g
        return [o * tl.tanh(c)], [c], [i, f, g, o]

    _launch_cell("lstm_cell", body, width, (input_gates, hidden_gates, cx, input_bias, hidden_bias), (hy, cy, kept))
    return hy, cy, kept


def _lstm_cell_backward(
    grad_hy: Any, grad_cy: Any, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Any, Any, Any]:
    """Compute the gradients of the gates, of c, and of a bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    rows, width = cx.shape
    by_gates, by_c = _like(cx, rows, 4 * width), _like(cx, rows, width)

    def body(tl: Any, by_h: Any, by_new: Any, old: Any, c: Any, gates: Any) -> Sequence[Any]:
        i, f, g, o = gates
        t = tl.tanh(c[0])
        by_h = tl.zeros(t.shape, F32) if by_h is None else by_h[0]
        inner = by_h * o * (1.0 - t * t)
        inner = inner if by_new is None else inner + by_new[0]
        slopes = (i * (1.0 - i), f * (1.0 - f), 1.0 - g * g, o * (1.0 - o))
        found = [x * slope for x, slope in zip((inner * g, inner * old[0], inner * i, by_h * t), slopes, strict=True)]
        return found, [inner * f]

    _launch_cell("lstm_cell_backward", body, width, (grad_hy, grad_cy, cx, cy, workspace), (by_gates, by_c))
    return by_gates, by_c, by_gates.sum(0) if has_bias else None


def _gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Tensor, Tensor]:
    """Return the new h, and the values that backward needs: reset, update, new, old h, and the hidden part of new."""
    rows, width = hx.shape
    hy, kept = _like(hx, rows, width), _like(hx, rows, 5 * width)

    def body(tl: Any, x: Any, h: Any, old: Any, b: Any, d: Any) -> Sequence[Any]:
        (x_r, x_z, x_n), (h_r, h_z, h_n) = _sum_of(x, b), _sum_of(h, d)
        r, z = tl.sigmoid(x_r + h_r), tl.sigmoid(x_z + h_z)
        n = tl.tanh(x_n + r * h_n)
        return [n + z * (old[0] - n)], [r, z, n, old[0], h_n]

    _launch_cell("gru_cell", body, width, (input_gates, hidden_gates, hx, input_bias, hidden_bias), (hy, kept))
    return hy, kept


def _gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, ...]:
    """Compute the gradients of the gates of input and hidden state, of h, and of both biases."""
    rows, width = grad_hy.shape
    by_x, by_h, by_old = (_like(grad_hy, rows, n * width) for n in (3, 3, 1))

    def body(tl: Any, grad: Any, kept: Any) -> Sequence[Any]:  # noqa: ARG001 - as all bodies
        (g,), (r, z, n, old, h_n) = grad, kept
        by_z = g * (old - n) * z * (1.0 - z)
        by_n = g * (1.0 - z) * (1.0 - n * n)
        by_r = by_n * h_n * r * (1.0 - r)
        return [by_r, by_z, by_n], [by_r, by_z, by_n * r], [g * z]

    _launch_cell("gru_cell_backward", body, width, (grad_hy, workspace), (by_x, by_h, by_old))
    return by_x, by_h, by_old, *((by_x.sum(0), by_h.sum(0)) if has_bias else (None, None))


def _pack_padded(x: Tensor, lengths: Any, batch_first: bool) -> tuple[Any, Any]:
    """Return the steps of sequences without padding, longest sequence first, and the number of sequences per step."""
    if isinstance(lengths, AhbmTensor):
        raise InputError(
            f"{program_place()}: pack_padded_sequence: lengths are on {lengths.device}, must be on the host: "
            "lengths.cpu()"
        )
    steps = x.transpose(0, 1) if batch_first else x
    form = torch.empty((*steps.shape[:2], 1))
    sizes = aten._pack_padded_sequence.default(form, lengths, False)[1]  # noqa: SLF001 - an operator's name
    alike, counts = torch.unique_consecutive(sizes, return_counts=True)
    parts, first = [], 0
    for size, count in zip(alike.tolist(), counts.tolist(), strict=True):
        parts.append(steps[first : first + count, :size].reshape(count * size, *steps.shape[2:]))
        first += count
    return torch.cat(parts), sizes


LOWERINGS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten._thnn_fused_lstm_cell.default: _lstm_cell,  # noqa: SLF001 - operators' names
        aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,  # noqa: SLF001
        aten._thnn_fused_gru_cell.default: _gru_cell,  # noqa: SLF001
        aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,  # noqa: SLF001
        aten._pack_padded_sequence.default: _pack_padded,  # noqa: SLF001
    }
)
