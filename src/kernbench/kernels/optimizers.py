"""Steps of optimizers: programs that update all parameters of a model in one launch, in f32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from kernbench.common.dtypes import F32
from kernbench.common.values import value
from kernbench.kernels.shares import blocks, share
from kernbench.kernels.tiling import most_elements, own_boxes
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

StateViews: TypeAlias = tuple[View, ...]
"""A parameter, its gradient, and the optimizer's averages of it, of one shape"""


T = TypeVar("T")


class Scalars(NamedTuple, Generic[T]):
    """Arrays of one element that a step of Adam reads: views, or their handles. None: there is no such array."""

    lr: T | None
    grad_scale: T | None
    found_inf: T | None
    step: T


@value
class Adam:
    """The settings of Adam; ``decoupled`` is AdamW. ``lr`` is None if the learning rate is an array."""

    decoupled: bool
    lr: float | None
    beta1: float
    beta2: float
    weight_decay: float
    eps: float
    maximize: bool

    def update(self, state: StateViews, scalars: Scalars[View], tl: TLContext) -> None:
        """Update this program's share of a parameter, its two moments and, if ``state`` has it, the largest second one.

        Elements keep their values if ``found_inf`` is set.
        """
        loaded: Scalars[Handle] | None = None
        for corner, extents in tl.repeated(own_boxes(state, tl), tuple([view.form for view in state])):
            loaded = loaded or _load_scalars(scalars, len(extents), tl)
            old = [tl.cast(view.tile(corner, extents).load(tl), F32) for view in state]
            parameter, *moments = self._step(old, loaded, tl)
            for view, before, after in zip(state, old, (parameter, None, *moments), strict=True):
                if after is not None:
                    updated = after if loaded.found_inf is None else tl.where(loaded.found_inf > 0, before, after)
                    view.tile(corner, extents).store(updated, tl)

    def _step(self, old: Sequence[Handle], scalars: Scalars[Handle], tl: TLContext) -> list[Handle]:
        """Return the updated parameter and moments of a block."""
        p, g, m, v, *largest = old
        lr = scalars.lr if self.lr is None else self.lr
        assert lr is not None, "a step has a learning rate: a number or an array"
        if scalars.grad_scale is not None:
            g = g / scalars.grad_scale
        g = -g if self.maximize else g
        if self.weight_decay and self.decoupled:
            p = p - p * (lr * self.weight_decay)
        elif self.weight_decay:
            g = g + p * self.weight_decay
        m = m + (g - m) * (1.0 - self.beta1)
        v = v * self.beta2 + g * g * (1.0 - self.beta2)
        largest = [tl.maximum(moment, v) for moment in largest]
        root = tl.sqrt(largest[0] if largest else v) / tl.sqrt(_correction(tl, self.beta2, scalars.step)) + self.eps
        return [p - m / root * (lr / _correction(tl, self.beta1, scalars.step)), m, v, *largest]


def _correction(tl: TLContext, beta: float, step: Handle) -> Handle:
    """Return 1 - beta ** step."""
    return 1.0 - tl.exp(step * math.log(beta)) if beta else step * 0.0 + 1.0


def _load_scalars(scalars: Scalars[View], axes: int, tl: TLContext) -> Scalars[Handle]:
    lr, grad_scale, found_inf = [None if view is None else load_one(view, axes, tl) for view in scalars[:3]]
    return Scalars(lr, grad_scale, found_inf, load_one(scalars.step, axes, tl))


def load_one(view: View, axes: int, tl: TLContext) -> Handle:
    """Load an array of one element in f32, with ``axes`` axes of length 1."""
    return tl.reshape(tl.cast(tl.load(view.address, (1,), view.dtype), F32), [1] * axes)


@value
class Sgd:
    """The settings of stochastic gradient descent. The first step has no average of gradients to read."""

    lr: float
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool
    maximize: bool
    is_first_step: bool

    def update(self, state: StateViews, tl: TLContext) -> None:
        """Update this program's share of a parameter and, with momentum, of its average gradient."""
        for corner, extents in tl.repeated(own_boxes(state, tl), tuple([view.form for view in state])):
            parameter, gradient, *averages = [view.tile(corner, extents) for view in state]
            p, g = (tl.cast(tile.load(tl), F32) for tile in (parameter, gradient))
            g = -g if self.maximize else g
            g = g + p * self.weight_decay if self.weight_decay else g
            for tile in averages:
                average = g
                if not self.is_first_step:
                    average = tl.cast(tile.load(tl), F32) * self.momentum + g * (1.0 - self.dampening)
                tile.store(average, tl)
                g = g + average * self.momentum if self.nesterov else average
            parameter.store(p - g * self.lr, tl)


def unscale(gradient: View, found_inf: int, inv_scale: View, tl: TLContext) -> None:
    """Multiply this program's share of a gradient by ``inv_scale``. Set ``found_inf`` if an element is not finite."""
    for corner, extents in own_boxes((gradient,), tl):
        tile = gradient.tile(corner, extents)
        x = tl.cast(tile.load(tl), F32)
        wrong = tl.elementwise("eq", tl.elementwise("isfinite", x), 0)
        flat = tl.reshape(tl.broadcast(tl.cast(wrong, F32), extents), (math.prod(extents),))
        tl.atomic_max(found_inf, tl.max(flat, 0, keepdims=True))
        tile.store(x * load_one(inv_scale, len(extents), tl), tl)


@value
class Norm:
    """The norm of order 1, 2 or infinity of several arrays: each program reduces its shares, and one the results."""

    order: float

    def reduce_shares(self, arrays: Sequence[View], partials: View, tl: TLContext) -> None:
        """Reduce this program's share of each contiguous array to an element of ``partials`` (arrays, programs)."""
        program = tl.site.cube * tl.site.num_pes + tl.site.pe
        for row, array in enumerate(arrays):
            total = None
            first, size = share(array.extents[0], tl)
            for start, count in blocks(size, most_elements(tl), first):
                x = tl.cast(array.tile((start,), (count,)).load(tl), F32)
                result = self._reduce(x * x if self.order == 2 else tl.abs(x), tl)
                total = result if total is None else tl.elementwise(self._operator, total, result)
            partials.tile((row, program), (1,)).store(tl.zeros((1,), F32) if total is None else total, tl)

    def combine(self, partials: View, results: Sequence[View], tl: TLContext) -> None:
        """Reduce rows of ``partials`` to ``results``, which programs divide among themselves."""
        first, count = share(len(results), tl)
        for row in range(first, first + count):
            total = self._reduce(partials.tile((row, 0), partials.extents[1:]).load(tl), tl)
            results[row].store(tl.sqrt(total) if self.order == 2 else total, tl)

    @property
    def _operator(self) -> str:
        return "maximum" if self.order == math.inf else "add"

    def _reduce(self, x: Handle, tl: TLContext) -> Handle:
        return tl.max(x, 0, keepdims=True) if self.order == math.inf else tl.sum(x, 0, keepdims=True)


@value
class LossScale:
    """The rule that adapts the factor of a loss: it shrinks after infinite gradients, and grows after an interval."""

    growth: float
    backoff: float
    interval: int

    def next_scale(self, tl: TLContext, scale: Handle, found_inf: Handle, tracker: Handle) -> Handle:
        """Return the next factor; it grows only if it stays finite."""
        is_wrong, is_due = self._judge(tl, found_inf, tracker)
        grown = scale * self.growth
        grown = tl.where(tl.elementwise("isfinite", grown), grown, scale)
        return tl.where(is_wrong, scale * self.backoff, tl.where(is_due, grown, scale))

    def next_count(self, tl: TLContext, found_inf: Handle, tracker: Handle) -> Handle:
        """Return the next number of steps since the factor changed."""
        is_wrong, is_due = self._judge(tl, found_inf, tracker)
        return tl.where(tl.elementwise("or", is_wrong, is_due), 0, tracker + 1)

    def _judge(self, tl: TLContext, found_inf: Handle, tracker: Handle) -> tuple[Handle, Handle]:
        return tl.cast(found_inf, F32) > 0, tl.elementwise("ge", tracker + 1, self.interval)
