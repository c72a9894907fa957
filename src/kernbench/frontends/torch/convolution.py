"""Convolutions and their gradients: one launch each, for one to three axes, in PyTorch's layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from kernbench.common.values import value
from kernbench.frontends.placed import grid_for
from kernbench.frontends.torch.launches import dtype_of, launch, view_of
from kernbench.frontends.torch.pooling import Sizes, per_axis
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import new, sip_of
from kernbench.kernels.convolution import Convolution, Windows, choose_convolution_grid
from kernbench.kernels.depthwise import DepthwiseConvolution, TapAxis
from kernbench.kernels.product_grids import PeRates
from kernbench.kernels.view import View
from kernbench.kernels.windows import flat_places
from kernbench.triton_emu.tl_context import TLContext


@value
class _Layers:
    """A convolution from ``images`` (n, channels, …) to ``places`` (n, channels, …), with its weights.

    A transposed convolution is the gradient of such a convolution: its input is ``places``.
    """

    axes: tuple[TapAxis, ...]
    n: int
    groups: int
    channels: tuple[int, int]

    @staticmethod
    def of(images: Sizes, places: Sizes, weight: Tensor, rule: tuple[Sizes, Sizes, Sizes], groups: int) -> _Layers:
        """Return the convolution from a shape of images to one of places. ``rule``: stride, padding, dilation."""
        axes = weight.dim() - 2
        numbers = [per_axis(sizes, axes) for sizes in rule]
        rows = zip(images[2:], places[2:], weight.shape[2:], *numbers, strict=True)
        return _Layers(
            tuple([TapAxis(*row) for row in rows]), images[0], groups, (images[1] // groups, places[1] // groups)
        )

    @property
    def taps(self) -> int:
        """Elements of a window."""
        return prod(axis.width for axis in self.axes)

    @property
    def places(self) -> int:
        """Windows of an image."""
        return prod(axis.windows for axis in self.axes)

    def convolve(self, out: Tensor, images: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Launch the convolution, with its bias."""
        c, o = self.channels
        product = o, c * self.taps, self.n * self.places
        work = self._work(product, self._gathered_bytes(images), images, weight, out)
        operands = [images, weight] if bias is None else [images, weight, bias]
        _launch("convolution", work.run, (out,), operands, weight=2)

    def differentiate_images(self, out: Tensor, grad: Tensor, weight: Tensor) -> None:
        """Launch the gradient of the images."""
        c, o = self.channels
        product = c, o * self.taps, self.n * prod(axis.extent for axis in self.axes)
        work = self._work(product, self._gathered_bytes(grad), grad, weight, out)
        _launch("convolution_backward", work.run_input_gradient, (out,), [grad, weight], weight=2)

    def differentiate_weight(self, out: Tensor, grad: Tensor, images: Tensor) -> None:
        """Launch the gradient of the weights."""
        c, o = self.channels
        product = o, self.n * self.places, c * self.taps
        work = self._work(product, self._gathered_bytes(images), images, grad, out)
        _launch("convolution_backward", work.run_weight_gradient, (out,), [grad, images], weight=0)

    def _gathered_bytes(self, images: Tensor) -> int:
        """Return the bytes that MATH gathers for an element of a column."""
        return 0 if self.taps == 1 else images.element_size()

    def _work(
        self, product: tuple[int, int, int], gathered: int, *tensors: Tensor
    ) -> Convolution | DepthwiseConvolution:
        """Return the work of a launch on ``tensors``. ``product`` and ``gathered`` are those of its grid."""
        x = tensors[0]
        if self.groups > 1 and self.channels[0] == 1 and x.dtype.is_floating_point:
            return DepthwiseConvolution(self.axes, self.n, self.groups, self.channels[1])
        context = current()
        cubes, pes = grid_for(context, max(y.numel() * y.element_size() for y in tensors))
        spec = context.topology
        rates, item = PeRates.of(spec, dtype_of(x)), x.element_size()
        rate = spec.pe.math.bytes_per_ns
        grid = choose_convolution_grid(rates, rate, cubes * pes, self.groups, product, gathered, item)
        windows = Windows(tuple([axis.table() for axis in self.axes]))
        return Convolution(windows, self.n, self.groups, self.channels, grid, spec.pe.gemm.acc_bytes)


def _launch(
    name: str, kernel: Callable[..., None], outs: Sequence[Tensor], inputs: Sequence[Tensor], *, weight: int
) -> None:
    """Launch ``kernel(*views, tl=tl)``: images are (n, channels, places), weights are matrices.

    ``weight``: the place of the weights among the operands. The images may be the same tensor.
    """
    views = []
    operands = [x if x.dim() < 3 or flat_places(view_of(x)) is not None else x.contiguous() for x in inputs]
    for place, x in enumerate((*outs, *operands)):
        view = view_of(x)
        if place == weight:
            view = View.row_major(0, (x.shape[0], prod(x.shape[1:])), view.dtype)
        elif x.dim() > 1:
            flat = flat_places(view)
            assert flat is not None, "operands are contiguous, and so are results"
            view = flat
        views.append(view)

    def program(*addresses: int, tl: TLContext) -> None:
        kernel(*[view.on(address) for view, address in zip(views, addresses, strict=True)], tl=tl)

    launch(name, program, outs, operands)


def _has_product(x: Tensor) -> bool:
    """Return whether the machine multiplies elements of this type."""
    return x.dtype.is_floating_point or x.dtype is torch.int8


def _format(x: Tensor, weight: Tensor) -> torch.memory_format:
    """Return the layout of a convolution's results: channels last if that of an operand is, as on PyTorch's CPU."""
    for operand in (x, weight):
        layout = suggest_memory_format(operand)
        if layout is not torch.contiguous_format:
            return layout
    return torch.contiguous_format


def new_in_layout(shape: Sizes, like: Tensor, layout: torch.memory_format) -> Tensor:
    """Return an uninitialised tensor with the type and device of ``like``."""
    form = torch.empty(tuple(shape), device="meta", memory_format=layout)
    return new(tuple(shape), like.dtype, sip_of(like), form.stride())


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Tensor:
    """Compute a convolution, or for a transposed one the gradient of its images."""
    if not _has_product(x):
        return NotImplemented
    axes, rule = weight.dim() - 2, (stride, padding, dilation)
    numbers = zip(x.shape[2:], weight.shape[2:], *[per_axis(n, axes) for n in (*rule, output_padding)], strict=True)
    if transposed:
        sizes = [(n - 1) * s - 2 * p + d * (k - 1) + 1 + more for n, k, s, p, d, more in numbers]
        out = new_in_layout((x.shape[0], weight.shape[1] * groups, *sizes), x, _format(x, weight))
        layers = _Layers.of(out.shape, x.shape, weight, rule, groups)
    else:
        sizes = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in numbers]
        out = new_in_layout((x.shape[0], weight.shape[0], *sizes), x, _format(x, weight))
        layers = _Layers.of(x.shape, out.shape, weight, rule, groups)
    if not out.numel() or not x.numel():
        return out if bias is None else out.zero_().add_(bias.reshape(1, -1, *[1] * axes))
    if not transposed:
        layers.convolve(out, x, weight.contiguous(), bias)
        return out
    layers.differentiate_images(out, x, weight.contiguous())
    return out if bias is None else out.add_(bias.reshape(1, -1, *[1] * axes))


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sizes | None,  # noqa: ARG001 - the mask has it
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,  # noqa: ARG001 - the shape of grad has it
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute the gradients of input, weights and bias that ``output_mask`` requests."""
    layout, rule = _format(x, weight), (stride, padding, dilation)
    images, places = (grad, x) if transposed else (x, grad)
    layers = _Layers.of(images.shape, places.shape, weight, rule, groups)
    by_x = new_in_layout(x.shape, x, layout) if output_mask[0] else None
    by_weight = new_in_layout(weight.shape, weight, torch.contiguous_format) if output_mask[1] else None
    if not grad.numel() or not x.numel():
        by_x, by_weight = [None if y is None else y.zero_() for y in (by_x, by_weight)]
    else:
        if by_x is not None and transposed:
            layers.convolve(by_x, grad, weight.contiguous(), None)
        elif by_x is not None:
            layers.differentiate_images(by_x, grad, weight.contiguous())
        if by_weight is not None:
            layers.differentiate_weight(by_weight, places, images)
    if by_weight is not None and layout is not torch.contiguous_format:
        by_weight = by_weight.contiguous(memory_format=layout)
    return by_x, by_weight, grad.sum([0, *range(2, grad.dim())]) if output_mask[2] else None
