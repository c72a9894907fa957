"""Operators on lists of tensors, as optimisers use them: one launch for all tensors of a list."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernbench.frontends.placed import pes_for
from kernbench.frontends.torch.launches import dtype_of, launch, launch_on, merged_views, view_of
from kernbench.frontends.torch.pointwise import ElementwiseWork, Rule, apply_all, plain, work_of
from kernbench.frontends.torch.storage import TorchOperator, current
from kernbench.frontends.torch.tensor import AhbmTensor, new, sip_of
from kernbench.kernels.elementwise import COPY, Expression
from kernbench.kernels.functions import fill
from kernbench.kernels.optimizers import Adam, LossScale, Norm, Scalars, Sgd, unscale
from kernbench.kernels.view import View
from kernbench.triton_emu.tl_context import TLContext

aten = torch.ops.aten
_PREFIX = "_foreach_"


def foreach(operator: TorchOperator, rule: Rule | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run ``_foreach_name`` by the ``rule`` of ``name`` on every tensor of the lists; NotImplemented without a rule."""
    name = operator.overloadpacket.__name__
    in_place = name.endswith("_")
    single = name.removeprefix(_PREFIX).rstrip("_")
    calls = [[x[i] if isinstance(x, list | tuple) else x for x in args] for i in range(len(args[0]))]
    if single == "copy":
        apply_all(name, [(COPY, target, (source,), ()) for target, source, *_ in calls])
        return None
    if single == "zero":
        apply_all(name, [(Expression.of(fill, 0, dtype_of(x)), x, (), ()) for (x, *_) in calls])
        return None
    if rule is None or any(_is_mixed(call) or (not in_place and _is_converted(call)) for call in calls):
        return NotImplemented
    options = {key: x for key, x in kwargs.items() if not isinstance(x, list | tuple)}
    work: list[ElementwiseWork] = []
    outs: list[Tensor] = []
    for call in calls:
        first = call[0]
        out = first if in_place else new(tuple(first.shape), first.dtype, sip_of(first))
        outs.append(out)
        work.append(work_of(single, rule, call, options, out, out.dtype))
    apply_all(name, work)
    return None if in_place else outs


def _is_converted(args: Sequence[Any]) -> bool:
    """Return whether the result may differ from the first tensor in dtype, as a root of integers, or in shape."""
    first = args[0]
    return not first.dtype.is_floating_point or any(
        x.shape != first.shape for x in args if isinstance(x, Tensor) and x.dim()
    )


def _is_mixed(args: Sequence[Any]) -> bool:
    """Return whether the tensors have several dtypes. PyTorch would then promote the result."""
    return len({x.dtype for x in args if isinstance(x, Tensor) and x.dim()}) > 1


def _launch_steps(
    name: str,
    groups: Sequence[Sequence[Tensor]],
    inputs: Sequence[Tensor],
    update: Callable[[Sequence[tuple[View, ...]], Sequence[int], TLContext], None],
) -> None:
    """Launch ``update(states, input addresses, tl)``. A state is a tensor of each group, parameters first."""
    states = [tuple(tensors) for tensors in zip(*groups, strict=True)]
    layouts = [merged_views(tensors) for tensors in states]
    changed = [x for tensors in states for x in tensors]

    def program(*addresses: int, tl: TLContext) -> None:
        remaining = iter(addresses)
        placed = [tuple([view.on(next(remaining)) for view in layout]) for layout in layouts]
        update(placed, tuple(remaining), tl)

    if changed:
        launch(name, program, changed, inputs, sum(x.numel() * x.element_size() for x in groups[0]))


def step_adam(
    decoupled: bool,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    lr: float | Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Update all parameters in one launch, which reads and writes each element once. ``decoupled``: AdamW."""
    rate = plain(lr)
    optimizer = Adam(
        decoupled, None if isinstance(rate, AhbmTensor) else rate, beta1, beta2, weight_decay, eps, maximize
    )
    shared = [view_of(x) if isinstance(x, AhbmTensor) else None for x in (rate, grad_scale, found_inf)]
    steps = [view_of(x) for x in state_steps]
    groups = [params, grads, exp_avgs, exp_avg_sqs, *([max_exp_avg_sqs] if amsgrad else [])]

    def update(states: Sequence[tuple[View, ...]], addresses: Sequence[int], tl: TLContext) -> None:
        remaining = iter(addresses[len(states) :])
        rate_at, scale_at, flag_at = [None if view is None else view.on(next(remaining)) for view in shared]
        for state, step, address in zip(states, steps, addresses, strict=False):
            optimizer.update(state, Scalars(rate_at, scale_at, flag_at, step.on(address)), tl)

    inputs = (*state_steps, *[x for x in (rate, grad_scale, found_inf) if isinstance(x, AhbmTensor)])
    _launch_steps("fused_adamw" if decoupled else "fused_adam", groups, inputs, update)


fused_adam_, fused_adamw_ = partial(step_adam, False), partial(step_adam, True)


def fused_sgd_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Any:
    """Update all parameters in one launch; NotImplemented if gradients are scaled or the learning rate is a tensor."""
    rate = plain(lr)
    if grad_scale is not None or found_inf is not None or isinstance(rate, AhbmTensor):
        return NotImplemented
    optimizer = Sgd(rate, momentum, dampening, weight_decay, nesterov, maximize, is_first_step)

    def update(states: Sequence[tuple[View, ...]], _: Sequence[int], tl: TLContext) -> None:
        for state in states:
            optimizer.update(state, tl)

    _launch_steps("fused_sgd", [params, grads, *([buffers] if momentum else [])], (), update)
    return None


def foreach_norm(tensors: Sequence[Tensor], ord: float = 2, dtype: torch.dtype | None = None) -> Any:  # noqa: A002
    """Compute the norm of each tensor. Programs reduce their shares, then a second launch combines the results."""
    if ord not in (1, 2, math.inf) or any(not x.is_contiguous() for x in tensors):
        return NotImplemented
    norm, sip = Norm(ord), sip_of(tensors[0])
    pes = pes_for(current(), sip, sum(x.numel() * x.element_size() for x in tensors))
    outs = [new((), dtype or x.dtype, sip) for x in tensors]
    partials = new((len(tensors), len(pes)), torch.float32, sip)
    arrays = [View(0, (x.numel(),), (1,), dtype_of(x)) for x in tensors]
    results = [View(0, (1,), (1,), dtype_of(x)) for x in outs]
    partials_view = view_of(partials)

    def reduce_shares(partials_at: int, *addresses: int, tl: TLContext) -> None:
        placed = [view.on(address) for view, address in zip(arrays, addresses, strict=True)]
        norm.reduce_shares(placed, partials_view.on(partials_at), tl)

    def combine(*addresses: int, tl: TLContext) -> None:
        placed = [view.on(address) for view, address in zip(results, addresses, strict=False)]
        norm.combine(partials_view.on(addresses[-1]), placed, tl)

    launch_on("foreach_norm", pes, reduce_shares, (partials,), tensors)
    launch("foreach_norm", combine, outs, (partials,))
    return outs


def unscale_(grads: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """Multiply gradients by ``inv_scale``, and set ``found_inf`` if an element is not finite, in one launch."""
    layouts = [merged_views([x])[0] for x in grads]

    def program(*addresses: int, tl: TLContext) -> None:
        found_inf_at, scale_at = addresses[-2:]
        for layout, address in zip(layouts, addresses, strict=False):
            unscale(layout.on(address), found_inf_at, view_of(inv_scale).on(scale_at), tl)

    launch("amp_unscale", program, (*grads, found_inf), (inv_scale,), sum(x.numel() * x.element_size() for x in grads))


def update_scale_(
    scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> Tensor:
    """Shrink the scale after gradients that were not finite, and grow it after enough finite ones."""
    rule = LossScale(scale_growth_factor, scale_backoff_factor, growth_interval)
    work: list[ElementwiseWork] = [
        (rule.next_scale, scale, (scale, found_inf, growth_tracker), ()),
        (rule.next_count, growth_tracker, (found_inf, growth_tracker), ()),
    ]
    apply_all("amp_update_scale", work)
    return scale
