"""Batch normalisation of images, forward and backward: one launch each, in PyTorch's layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from kernbench.frontends.torch.convolution import new_in_layout
from kernbench.frontends.torch.launches import launch, view_of
from kernbench.frontends.torch.tensor import new, sip_of
from kernbench.kernels.batch_norm import BatchNorm
from kernbench.kernels.windows import flat_places
from kernbench.triton_emu.tl_context import TLContext


def _launch(
    name: str, kernel: Callable[..., None], outs: Sequence[Tensor | None], inputs: Sequence[Tensor | None]
) -> None:
    """Launch ``kernel(*views, tl=tl)``: images are (images, channels, places), parameters (channels,), None is None."""
    operands = [x if x is None or _is_flat(x) else x.contiguous() for x in inputs]
    views = [None if x is None else view_of(x) for x in (*outs, *operands)]
    layouts = [view if view is None or len(view.extents) == 1 else flat_places(view) for view in views]

    def program(*addresses: int, tl: TLContext) -> None:
        remaining = iter(addresses)
        kernel(*[None if layout is None else layout.on(next(remaining)) for layout in layouts], tl=tl)

    results = [x for x in outs if x is not None]
    launch(name, program, results, [x for x in operands if x is not None])


def _is_flat(x: Tensor) -> bool:
    return x.dim() == 1 or flat_places(view_of(x)) is not None


def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each channel. Return also the mean and 1 / standard deviation of each channel, empty in evaluation."""
    out = new_in_layout(x.shape, x, suggest_memory_format(x))
    mean, scale = [new((x.shape[1] if training else 0,), _saved_dtype(weight), sip_of(x)) for _ in range(2)]
    if not x.numel():
        return out, mean.fill_(float("nan")), scale.fill_(float("nan"))
    saved = (mean, scale) if training else (None, None)
    kernel = BatchNorm(eps, momentum, training)
    _launch("batch_norm", kernel.run, (out, *saved, running_mean, running_var), (x, weight, bias))
    return out, mean, scale


def _saved_dtype(weight: Tensor | None) -> torch.dtype:
    """Return the type of saved statistics: that of the weights, f32 without weights."""
    return torch.float32 if weight is None else weight.dtype


def native_batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute the gradients of input, weight and bias that ``output_mask`` requests."""
    mean, scale = (save_mean, save_invstd) if train else (running_mean, running_var)
    by_x = new_in_layout(x.shape, x, suggest_memory_format(x)) if output_mask[0] else None
    parameter = (x.shape[1],), (x if weight is None else weight).dtype, sip_of(x)
    by_weight, by_bias = [new(*parameter) if is_wanted else None for is_wanted in output_mask[1:]]
    if not x.numel():
        return tuple([None if y is None else y.zero_() for y in (by_x, by_weight, by_bias)])  # type: ignore[return-value]
    kernel = BatchNorm(eps, 0.0, train)
    _launch("batch_norm_backward", kernel.run_gradients, (by_x, by_weight, by_bias), (grad, x, weight, mean, scale))
    return by_x, by_weight, by_bias
