"""Operators on lists of tensors, as optimisers use them: one launch for all tensors of a list."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from kernbench.common.dtypes import F32
from kernbench.common.values import value
from kernbench.frontends.placed import pes_for
from kernbench.frontends.torch.launches import dtype_of, launch, launch_on, merged_views
from kernbench.frontends.torch.pointwise import RULES, apply_all, identity, plain, work_of
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor, new, sip_of
from kernbench.kernels.shares import blocks, share
from kernbench.kernels.tiling import most_elements, own_boxes

aten = torch.ops.aten
_PREFIX = "_foreach_"


def foreach(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run ``_foreach_name`` by the rule of ``name``, on every tensor of the lists; NotImplemented without a rule."""
    name = operator.overloadpacket.__name__
    in_place = name.endswith("_")
    single = name.removeprefix(_PREFIX).rstrip("_")
    lists = [each if isinstance(each, list | tuple) else None for each in args]
    count = len(args[0])
    each_args = [
        [given[i] if given is not None else arg for arg, given in zip(args, lists, strict=True)] for i in range(count)
    ]
    if single == "copy":
        apply_all(name, [(identity, to, (x,), ()) for to, x, *_ in each_args])
        return None
    if single == "zero":
        apply_all(name, [(_zero_of(x), x, (), ()) for (x, *_) in each_args])
        return None
    rule = RULES.get(single)
    if rule is None or any(map(_is_mixed, each_args)):
        return NotImplemented
    options = {key: x for key, x in kwargs.items() if not isinstance(x, list | tuple)}
    work, outs = [], []
    for given in each_args:
        out = given[0] if in_place else new(tuple(given[0].shape), given[0].dtype, sip_of(given[0]))
        outs.append(out)
        work.append(work_of(single, rule, given, options, out, out.dtype))
    apply_all(name, work)
    return None if in_place else outs


def _is_mixed(args: Sequence[Any]) -> bool:
    """Return whether the tensors have several dtypes. PyTorch would then promote the result."""
    return len({x.dtype for x in args if isinstance(x, torch.Tensor) and x.dim()}) > 1


def _zero_of(x: Tensor) -> Callable[..., Any]:
    return lambda tl: tl.full((1,), 0, dtype_of(x))


@value
class _Adam:
    """The settings of an Adam step. ``lr`` is None if the learning rate is a tensor, which ``extra`` then holds."""

    decoupled: bool
    lr: float | None
    beta1: float
    beta2: float
    weight_decay: float
    eps: float
    maximize: bool

    def step(self, tl: Any, p: Any, g: Any, m: Any, v: Any, largest: Any, extra: _Extra) -> tuple[Any, Any, Any, Any]:
        """Return the updated parameter, both moments and the largest second moment of a block, all in f32."""
        lr = extra.lr if self.lr is None else self.lr
        if extra.grad_scale is not None:
            g = g / extra.grad_scale
        g = -g if self.maximize else g
        if self.weight_decay and self.decoupled:
            p = p - p * (lr * self.weight_decay)
        elif self.weight_decay:
            g = g + p * self.weight_decay
        m = m + (g - m) * (1.0 - self.beta1)
        v = v * self.beta2 + g * g * (1.0 - self.beta2)
        largest = largest if largest is None else tl.maximum(largest, v)
        root = tl.sqrt(v if largest is None else largest) / tl.sqrt(_correction(tl, self.beta2, extra.step)) + self.eps
        return p - m / root * (lr / _correction(tl, self.beta1, extra.step)), m, v, largest


@value
class _Extra:
    """Arrays of one element that a step reads: step number, learning rate, gradient scale, and the flag for inf."""

    step: Any
    lr: Any
    grad_scale: Any
    found_inf: Any


def _correction(tl: Any, beta: float, step: Any) -> Any:
    """Return 1 - beta ** step."""
    return 1.0 - tl.exp(step * math.log(beta)) if beta else step * 0.0 + 1.0


def _load_one(address: int | None, x: Tensor | None, axes: int, tl: Any) -> Any:
    """Load a tensor of one element in f32, with ``axes`` axes of length 1."""
    if x is None or address is None:
        return None
    return tl.reshape(tl.cast(tl.load(address, (1,), dtype_of(x)), F32), [1] * axes)


def _fused_adam(decoupled: bool) -> Callable[..., None]:
    name = "fused_adamw" if decoupled else "fused_adam"

    def lowering(
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
        max_exp_avg_sqs: Sequence[Tensor],
        state_steps: Sequence[Tensor],
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Any = None,
        found_inf: Any = None,
    ) -> None:
        """Update all parameters in one launch, which reads and writes each element once."""
        rate = plain(lr)
        how = _Adam(
            decoupled, None if isinstance(rate, AhbmTensor) else rate, beta1, beta2, weight_decay, eps, maximize
        )
        shared = [x if isinstance(x, AhbmTensor) else None for x in (rate, grad_scale, found_inf)]
        groups = [params, grads, exp_avgs, exp_avg_sqs, *([max_exp_avg_sqs] if amsgrad else [])]
        layouts = [merged_views(tensors) for tensors in zip(*groups, strict=True)]
        width, count = len(groups), len(params)

        def program(*addresses: int, tl: Any) -> None:
            steps_at = addresses[count * width : count * (width + 1)]
            rest = iter(addresses[count * (width + 1) :])
            shared_at = [None if x is None else next(rest) for x in shared]
            for i, layout in enumerate(layouts):
                views = [view.on(at) for view, at in zip(layout, addresses[i * width :], strict=False)]
                extra: _Extra | None = None
                for corner, box in own_boxes(layout[0].extents, tl):
                    if extra is None:
                        axes = len(box)
                        ones = [_load_one(a, x, axes, tl) for a, x in zip(shared_at, shared, strict=True)]
                        extra = _Extra(_load_one(steps_at[i], state_steps[i], axes, tl), *ones)
                    old = [tl.cast(view.tile(corner, box).load(tl), F32) for view in views]
                    p, g, m, v = old[:4]
                    stepped = how.step(tl, p, g, m, v, old[4] if width == 5 else None, extra)
                    for which, y in zip((0, 2, 3, 4), stepped, strict=True):
                        if y is not None:
                            updated = y if extra.found_inf is None else tl.where(extra.found_inf > 0, old[which], y)
                            views[which].tile(corner, box).store(updated, tl)

        changed = [x for tensors in zip(*groups, strict=True) for x in tensors]
        if changed:
            work = sum(x.numel() * x.element_size() for x in params)
            read = (*state_steps, *[x for x in shared if x is not None])
            launch(name, program, changed, read, work)

    return lowering


def _fused_sgd(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> Any:
    """Update all parameters in one launch; NotImplemented if gradients are scaled or the learning rate is a tensor."""
    rate = plain(lr)
    if grad_scale is not None or found_inf is not None or isinstance(rate, AhbmTensor):
        return NotImplemented
    groups = [params, grads, *([buffers] if momentum else [])]
    layouts = [merged_views(tensors) for tensors in zip(*groups, strict=True)]
    width = len(groups)

    def program(*addresses: int, tl: Any) -> None:
        for i, layout in enumerate(layouts):
            views = [view.on(at) for view, at in zip(layout, addresses[i * width :], strict=False)]
            for corner, box in own_boxes(layout[0].extents, tl):
                tiles = [view.tile(corner, box) for view in views]
                p, g = (tl.cast(tile.load(tl), F32) for tile in tiles[:2])
                g = -g if maximize else g
                g = g + p * weight_decay if weight_decay else g
                if momentum:
                    average = g
                    if not is_first_step:
                        average = tl.cast(tiles[2].load(tl), F32) * momentum + g * (1.0 - dampening)
                    tiles[2].store(average, tl)
                    g = g + average * momentum if nesterov else average
                tiles[0].store(p - g * rate, tl)

    changed = [x for tensors in zip(*groups, strict=True) for x in tensors]
    if changed:
        launch("fused_sgd", program, changed, (), sum(x.numel() * x.element_size() for x in params))
    return None


def _foreach_norm(tensors: Sequence[Tensor], ord: float = 2, dtype: Any = None) -> Any:  # noqa: A002
    """Compute the norm of each tensor. Programs reduce their shares, then a second launch combines the results."""
    if ord not in (1, 2, math.inf) or any(not x.is_contiguous() for x in tensors):
        return NotImplemented
    sip, fold = sip_of(tensors[0]), "maximum" if ord == math.inf else "add"
    nbytes = sum(x.numel() * x.element_size() for x in tensors)
    pes = pes_for(current(), sip, nbytes)
    outs = [new((), dtype or x.dtype, sip) for x in tensors]
    some = new((len(tensors), len(pes)), torch.float32, sip)
    types, sizes = [dtype_of(x) for x in tensors], [x.numel() for x in tensors]

    def along(tl: Any, x: Any) -> Any:
        return tl.max(x, 0, keepdims=True) if fold == "maximum" else tl.sum(x, 0, keepdims=True)

    def partial(some_at: int, *at: int, tl: Any) -> None:
        me = tl.site.cube * tl.site.num_pes + tl.site.pe
        for i, (address, item, size) in enumerate(zip(at, types, sizes, strict=True)):
            total = None
            first, mine = share(size, tl)
            for begin, count in blocks(mine, most_elements(tl), first):
                x = tl.cast(tl.load(address + begin * item.itemsize, (count,), item), F32)
                found = along(tl, x * x if ord == 2 else tl.abs(x))
                total = found if total is None else tl.elementwise(fold, total, found)
            tl.store(some_at + (i * len(pes) + me) * F32.itemsize, tl.zeros((1,), F32) if total is None else total)

    def combine(*at: int, tl: Any) -> None:
        first, mine = share(len(outs), tl)
        for i in range(first, first + mine):
            found = along(tl, tl.load(at[-1] + i * len(pes) * F32.itemsize, (len(pes),), F32))
            tl.store(at[i], tl.cast(tl.sqrt(found) if ord == 2 else found, dtype_of(outs[i])))

    launch_on("foreach_norm", pes, partial, (some,), tensors)
    launch("foreach_norm", combine, outs, (some,))
    return outs


def _unscale(grads: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """Multiply gradients by ``inv_scale``, and set ``found_inf`` if an element is not finite, in one launch."""
    layouts = [merged_views([x])[0] for x in grads]

    def program(*addresses: int, tl: Any) -> None:
        found_at, scale_at = addresses[-2:]
        for layout, address in zip(layouts, addresses, strict=False):
            for corner, box in own_boxes(layout.extents, tl):
                tile = layout.on(address).tile(corner, box)
                x = tl.cast(tile.load(tl), F32)
                wrong = tl.elementwise("eq", tl.elementwise("isfinite", x), 0)
                flat = tl.reshape(tl.broadcast(tl.cast(wrong, F32), box), (math.prod(box),))
                tl.atomic_max(found_at, tl.max(flat, 0, keepdims=True))
                tile.store(x * _load_one(scale_at, inv_scale, len(box), tl), tl)

    launch("amp_unscale", program, (*grads, found_inf), (inv_scale,), sum(x.numel() * x.element_size() for x in grads))


def _update_scale(
    scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> Tensor:
    """Shrink the scale after gradients that were not finite, and grow it after enough finite ones."""

    def step(tl: Any, wrong: Any, tracker: Any) -> tuple[Any, Any]:
        return tl.cast(wrong, F32) > 0, tl.elementwise("ge", tracker + 1, growth_interval)

    def next_scale(tl: Any, old: Any, wrong: Any, tracker: Any) -> Any:
        is_wrong, is_due = step(tl, wrong, tracker)
        grown = old * scale_growth_factor
        grown = tl.where(tl.elementwise("isfinite", grown), grown, old)
        return tl.where(is_wrong, old * scale_backoff_factor, tl.where(is_due, grown, old))

    def next_count(tl: Any, wrong: Any, tracker: Any) -> Any:
        is_wrong, is_due = step(tl, wrong, tracker)
        return tl.where(tl.elementwise("or", is_wrong, is_due), 0, tracker + 1)

    apply_all(
        "amp_update_scale",
        [
            (next_scale, scale, (scale, found_inf, growth_tracker), ()),
            (next_count, growth_tracker, (found_inf, growth_tracker), ()),
        ],
    )
    return scale


LOWERINGS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten._foreach_norm.Scalar: _foreach_norm,  # noqa: SLF001 - an operator's name
        aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
        aten._amp_update_scale_.default: _update_scale,
        aten._fused_sgd_.default: _fused_sgd,
        aten._fused_sgd_.tensor_lr: _fused_sgd,
        aten._fused_adamw_.default: _fused_adam(True),
        aten._fused_adamw_.tensor_lr: _fused_adam(True),
        aten._fused_adam_.default: _fused_adam(False),
        aten._fused_adam_.tensor_lr: _fused_adam(False),
    }
)
