"""Pools of images, forward and backward: one launch each, for one to three axes, in PyTorch's layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from kernbench.common.values import value
from kernbench.frontends.torch.launches import launch, view_of
from kernbench.frontends.torch.storage import TorchOperator
from kernbench.frontends.torch.tensor import new, sip_of, without_elements
from kernbench.kernels.pooling import Cells, Divisors, MaximaGradient, WindowMaxima, WindowSums
from kernbench.kernels.view import View
from kernbench.kernels.windows import WindowAxis, merge_images
from kernbench.triton_emu.tl_context import TLContext

Sizes: TypeAlias = Sequence[int]
"""Numbers for each axis, or one number for all axes"""
Lowering: TypeAlias = Callable[..., Any]


def per_axis(numbers: Sizes, axes: int) -> tuple[int, ...]:
    """Return a number for each axis: a single number counts for all."""
    return tuple(numbers) * axes if len(numbers) == 1 else tuple(numbers)


def new_results(operator: TorchOperator, *args: Any) -> list[Tensor]:
    """Return uninitialised results of an operator with PyTorch's shapes, types and strides."""
    forms = operator(*[without_elements(x) for x in args])
    sip = sip_of(next(x for x in args if isinstance(x, Tensor)))
    results = [forms] if isinstance(forms, Tensor) else forms
    return [new(tuple(form.shape), form.dtype, sip, form.stride()) for form in results]


@value(eq=False)
class _Pool:
    """Windows along the axes of images, and the operator's name in reports."""

    name: str
    axes: tuple[WindowAxis, ...]

    @staticmethod
    def regular(
        name: str, extents: Sizes, windows: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes = (1,)
    ) -> _Pool:
        """Return the pool of equal windows of ``kernel`` elements."""
        n = len(extents)
        rules = [per_axis(numbers, n) for numbers in (kernel, stride or kernel, padding, dilation)]
        return _Pool(name, tuple([WindowAxis.regular(*rule) for rule in zip(extents, windows, *rules, strict=True)]))

    @staticmethod
    def adaptive(name: str, extents: Sizes, windows: Sizes) -> _Pool:
        """Return the pool of ``windows`` windows along each axis, which cover all elements."""
        return _Pool(name, tuple([WindowAxis.adaptive(*sizes) for sizes in zip(extents, windows, strict=True)]))

    @property
    def long_axes(self) -> list[int]:
        """The axes that have more than one element or window; at least one axis."""
        is_long = [max(axis.extent, axis.windows, axis.width) > 1 for axis in self.axes]
        return [at for at, flag in enumerate(is_long) if flag] or [0]

    @property
    def windows(self) -> tuple[WindowAxis, ...]:
        """The windows along the long axes."""
        return tuple([self.axes[at] for at in self.long_axes])

    def launch(self, kernel: Callable[..., None], outs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """Launch ``kernel(*views, tl=tl)``. The views are (images, channels, long axes…)."""
        if not outs[0].numel():
            return
        dims = [0, 1, *[2 + at for at in self.long_axes]]
        batched = [x if x.dim() == len(self.axes) + 2 else x.unsqueeze(0) for x in (*outs, *inputs)]
        layouts = [view_of(x) for x in batched]
        views = merge_images(
            [
                View(0, tuple([view.extents[d] for d in dims]), tuple([view.strides[d] for d in dims]), view.dtype)
                for view in layouts
            ]
        )

        def program(*addresses: int, tl: TLContext) -> None:
            kernel(*[view.on(address) for view, address in zip(views, addresses, strict=True)], tl=tl)

        launch(self.name, program, outs, inputs)


def _averages(
    pool: _Pool, kernel: Sizes, stride: Sizes, padding: Sizes, count_include_pad: bool, divisor_override: int | None
) -> Divisors:
    """Return the divisors of average pooling along the long axes. A window without elements has the divisor 1."""
    if divisor_override is not None:
        return Divisors((), divisor_override)
    if not count_include_pad:
        return Divisors(tuple([np.maximum(axis.counts, 1) for axis in pool.windows]))
    rules = zip(*[per_axis(numbers, len(pool.axes)) for numbers in (kernel, stride or kernel, padding)], strict=True)
    factors = []
    for axis, (width, step, pad) in zip(pool.axes, rules, strict=True):
        starts = np.arange(axis.windows) * step - pad
        factors.append(np.maximum(np.minimum(starts + width, axis.extent + pad) - starts, 1))
    return Divisors(tuple([factors[at] for at in pool.long_axes]))


def avg_pool(operator: TorchOperator, axes: int) -> Lowering:
    """Return the lowering of average pooling along ``axes`` axes."""

    def lowering(
        x: Tensor,
        kernel: Sizes,
        stride: Sizes = (),
        padding: Sizes = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        (out,) = new_results(operator, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)
        pool = _Pool.regular(_name_of(operator), x.shape[-axes:], out.shape[-axes:], kernel, stride, padding)
        divisors = _averages(pool, kernel, stride, padding, count_include_pad, divisor_override)
        pool.launch(WindowSums(pool.windows, after=divisors).run, (out,), (x,))
        return out

    return lowering


def avg_pool_backward(operator: TorchOperator, axes: int) -> Lowering:
    """Return the lowering of the gradient of average pooling along ``axes`` axes."""

    def lowering(
        grad: Tensor,
        x: Tensor,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor:
        options = (kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)
        (out,) = new_results(operator, grad, x, *options)
        pool = _Pool.regular(_name_of(operator), x.shape[-axes:], grad.shape[-axes:], kernel, stride, padding)
        divisors = _averages(pool, kernel, stride, padding, count_include_pad, divisor_override)
        return _distribute(pool, divisors, out, grad)

    return lowering


def _distribute(pool: _Pool, divisors: Divisors, out: Tensor, grad: Tensor) -> Tensor:
    """Add the gradient of each window, divided, to all elements of the window."""
    inverse = tuple([axis.inverse() for axis in pool.windows])
    pool.launch(WindowSums(inverse, before=divisors).run, (out,), (grad,))
    return out


def adaptive_avg_pool(operator: TorchOperator) -> Lowering:
    """Return the lowering of adaptive average pooling."""

    def lowering(x: Tensor, output_size: Sizes) -> Tensor:
        (out,) = new_results(operator, x, output_size)
        axes = len(output_size)
        pool = _Pool.adaptive(_name_of(operator), x.shape[-axes:], out.shape[-axes:])
        divisors = Divisors(tuple([axis.counts for axis in pool.windows]))
        pool.launch(WindowSums(pool.windows, after=divisors).run, (out,), (x,))
        return out

    return lowering


def adaptive_avg_pool_backward(operator: TorchOperator, axes: int) -> Lowering:
    """Return the lowering of the gradient of adaptive average pooling along ``axes`` axes."""

    def lowering(grad: Tensor, x: Tensor) -> Tensor:
        (out,) = new_results(operator, grad, x)
        pool = _Pool.adaptive(_name_of(operator), x.shape[-axes:], grad.shape[-axes:])
        return _distribute(pool, Divisors(tuple([axis.counts for axis in pool.windows])), out, grad)

    return lowering


def max_pool(operator: TorchOperator, axes: int) -> Lowering:
    """Return the lowering of maximum pooling with indices along ``axes`` axes."""

    def lowering(
        x: Tensor,
        kernel: Sizes,
        stride: Sizes = (),
        padding: Sizes = (0,),
        dilation: Sizes = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:
        out, indices = new_results(operator, x, kernel, stride, padding, dilation, ceil_mode)
        pool = _Pool.regular(_name_of(operator), x.shape[-axes:], out.shape[-axes:], kernel, stride, padding, dilation)
        pool.launch(WindowMaxima(pool.windows).run, (out, indices), (x,))
        return out, indices

    return lowering


def max_pool_backward(operator: TorchOperator, axes: int) -> Lowering:
    """Return the lowering of the gradient of maximum pooling along ``axes`` axes."""

    def lowering(
        grad: Tensor,
        x: Tensor,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor:
        (out,) = new_results(operator, grad, x, kernel, stride, padding, dilation, ceil_mode, indices)
        pool = _Pool.regular(_name_of(operator), x.shape[-axes:], grad.shape[-axes:], kernel, stride, padding, dilation)
        return _give_to_maxima(pool, per_axis(stride or kernel, axes), out, grad, indices)

    return lowering


def _give_to_maxima(pool: _Pool, sizes: Sizes, out: Tensor, grad: Tensor, indices: Tensor) -> Tensor:
    """Add the gradient of each window to its maximum. ``sizes`` are those of cells along each axis."""
    cells = tuple([Cells.of(pool.axes[at], sizes[at]) for at in pool.long_axes])
    pool.launch(MaximaGradient(cells).run, (out,), (grad, indices))
    return out


def adaptive_max_pool(operator: TorchOperator) -> Lowering:
    """Return the lowering of adaptive maximum pooling."""

    def lowering(x: Tensor, output_size: Sizes) -> tuple[Tensor, Tensor]:
        out, indices = new_results(operator, x, output_size)
        axes = len(output_size)
        pool = _Pool.adaptive(_name_of(operator), x.shape[-axes:], out.shape[-axes:])
        pool.launch(WindowMaxima(pool.windows).run, (out, indices), (x,))
        return out, indices

    return lowering


def adaptive_max_pool_backward(operator: TorchOperator, axes: int) -> Lowering:
    """Return the lowering of the gradient of adaptive maximum pooling along ``axes`` axes."""

    def lowering(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        (out,) = new_results(operator, grad, x, indices)
        pool = _Pool.adaptive(_name_of(operator), x.shape[-axes:], grad.shape[-axes:])
        return _give_to_maxima(pool, [1] * axes, out, grad, indices)

    return lowering


def _name_of(operator: TorchOperator) -> str:
    return operator.overloadpacket.__name__.lstrip("_")
