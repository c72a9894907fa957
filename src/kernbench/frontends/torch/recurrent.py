"""Recurrent layers: one launch for all gates of an LSTM or GRU step, and packed sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernbench.common.errors import InputError
from kernbench.frontends.torch.launches import dtype_of, launch
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.tensor import AhbmTensor, new, sip_of
from kernbench.kernels.recurrent import CellRule, RecurrentCell, gru, gru_backward, lstm, lstm_backward
from kernbench.kernels.view import View

aten = torch.ops.aten


def _launch_cell(
    name: str, rule: CellRule, width: int, inputs: Sequence[Tensor | None], outs: Sequence[Tensor]
) -> None:
    """Launch a cell of ``width`` features. A bias is a matrix of one row; ``outs`` are contiguous matrices."""
    operands = [None if x is None else x.contiguous() for x in inputs]
    views = [None if x is None else _view_gates(x.reshape(-1, x.shape[-1])) for x in operands]
    cell = RecurrentCell(rule, width, tuple(views), tuple([_view_gates(out) for out in outs]))
    if outs[0].shape[0]:
        launch(name, cell.run, outs, [x for x in operands if x is not None])


def _view_gates(x: Tensor) -> View:
    return View.row_major(0, tuple(x.shape), dtype_of(x))


def _like(x: Tensor, gates: int = 1) -> Tensor:
    """Return a matrix with the rows of ``x``, and ``gates`` times its columns."""
    rows, width = x.shape
    return new((rows, gates * width), x.dtype, sip_of(x))


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new h and c, and the gates that backward needs."""
    hy, cy, workspace = _like(cx), _like(cx), _like(cx, 4)
    operands = (input_gates, hidden_gates, cx, input_bias, hidden_bias)
    _launch_cell("lstm_cell", lstm, cx.shape[1], operands, (hy, cy, workspace))
    return hy, cy, workspace


def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute the gradients of the gates, of c, and of a bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    by_gates, by_c = _like(cx, 4), _like(cx)
    operands = (grad_hy, grad_cy, cx, cy, workspace)
    _launch_cell("lstm_cell_backward", lstm_backward, cx.shape[1], operands, (by_gates, by_c))
    return by_gates, by_c, by_gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the new h, and the values that backward needs."""
    hy, workspace = _like(hx), _like(hx, 5)
    operands = (input_gates, hidden_gates, hx, input_bias, hidden_bias)
    _launch_cell("gru_cell", gru, hx.shape[1], operands, (hy, workspace))
    return hy, workspace


def gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    """Compute the gradients of the gates of input and hidden state, of h, and of both biases."""
    by_x, by_h, by_old = _like(grad_hy, 3), _like(grad_hy, 3), _like(grad_hy)
    _launch_cell("gru_cell_backward", gru_backward, grad_hy.shape[1], (grad_hy, workspace), (by_x, by_h, by_old))
    return by_x, by_h, by_old, *((by_x.sum(0), by_h.sum(0)) if has_bias else (None, None))


def pack_padded_sequence(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Return the steps of sequences without padding, longest sequence first, and the number of sequences per step."""
    if isinstance(lengths, AhbmTensor):
        raise InputError(
            f"{program_place()}: pack_padded_sequence: lengths are on {lengths.device}, must be on the host: "
            "lengths.cpu()"
        )
    steps = x.transpose(0, 1) if batch_first else x
    form = torch.empty((*steps.shape[:2], 1))
    sizes: Tensor = aten._pack_padded_sequence.default(form, lengths, False)[1]  # noqa: SLF001 - an operator's name
    distinct, counts = torch.unique_consecutive(sizes, return_counts=True)
    parts, first = [], 0
    for size, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        parts.append(steps[first : first + count, :size].reshape(count * size, *steps.shape[2:]))
        first += count
    return torch.cat(parts), sizes
