"""Operators of a compiled graph that the machine's own kernels compute, and forms of others that cost less on it.

Inductor decomposes most operators, and fuses the parts. Operators of this table stay whole: each is one launch of a
kernel that is faster than generated ones, or that has no elementwise parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._inductor import decomposition, lowering
from torch._inductor.fx_passes import joint_graph, post_grad
from torch._inductor.ir import ExternKernel, IRNode
from torch._inductor.virtualized import V
from torch.fx import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.placed import whole_grid
from kernbench.frontends.torch.storage import TorchOperator, overload_of
from kernbench.frontends.torch.tensor import replace
from kernbench.frontends.torch.traced import LOWERINGS
from kernbench.runtime_api.collective_pes import SHARD_BYTES
from kernbench.runtime_api.context import current_context

aten = torch.ops.aten

_KEPT = """
    _softmax _softmax_backward_data _safe_softmax logsumexp
    _fused_rms_norm _fused_rms_norm_backward
    argmax argmin max.dim min.dim cumsum cummax cummin sort sort.stable topk
    median median.dim nanmedian nanmedian.dim kthvalue searchsorted.Tensor bucketize.Tensor
    convolution convolution_backward addbmm _grouped_mm _int_mm _scaled_mm _weight_int8pack_mm _weight_int4pack_mm
    _cdist_forward _cdist_backward histc bincount
    max_pool2d_with_indices max_pool3d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices_backward
    adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool2d_backward adaptive_max_pool3d_backward
    avg_pool2d avg_pool3d avg_pool2d_backward avg_pool3d_backward
    _adaptive_avg_pool2d _adaptive_avg_pool3d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
    _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _thnn_fused_gru_cell_backward
    embedding embedding_dense_backward index_select gather scatter_add index_add nonzero
"""
"""Operators of PyTorch that stay whole. Reductions without indices are not among them: they fuse with their operands"""
_SMALL_SHARDS = 2
"""Shards for each PE up to which a lookup or a write at indices is fused. A generated kernel waits for each index"""


def _kept() -> Iterator[TorchOperator]:
    yield from map(overload_of, _KEPT.split())
    yield from LOWERINGS


def _is_machine(device: torch.device | None) -> bool:
    return device is not None and device.type == DEVICE


def _has_machine_tensor(args: object) -> bool:
    return any(isinstance(x, Tensor) and _is_machine(x.device) for x in tree_leaves(args))


def _has_machine_node(args: object) -> bool:
    return any(isinstance(x, IRNode) and _is_machine(x.get_device()) for x in tree_leaves(args))


# decompositions


def _keep(decompose: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decomposition, changed to leave operators on the machine whole."""

    @wraps(decompose)
    def decompose_elsewhere(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if _has_machine_tensor((args, kwargs)) else decompose(*args, **kwargs)

    return decompose_elsewhere


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _silu(x: Tensor) -> Tensor:
    """Compute silu by a sigmoid, which is one operation of the machine. PyTorch's form has four."""
    wide = _wide(x)
    return (wide * torch.sigmoid(wide)).to(x.dtype)


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Compute the gradient of silu by a sigmoid."""
    wide = _wide(x)
    sigmoid = torch.sigmoid(wide)
    return (_wide(grad) * sigmoid * (1 + wide * (1 - sigmoid))).to(x.dtype)


def _native_dropout(x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    """Compute dropout with the mask that the eager operator draws."""
    if not train or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask: Tensor = aten.bernoulli.p(torch.empty_like(x, dtype=torch.bool), 1 - p)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return (torch.where(mask, _wide(x), 0.0) * scale).to(x.dtype), mask


_CHEAPER: Mapping[TorchOperator, Callable[..., Any]] = {
    aten.silu.default: _silu,
    aten.silu_backward.default: _silu_backward,
    aten.native_dropout.default: _native_dropout,
}


def _decompose_cheaply(cheaper: Callable[..., Any], decompose: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a decomposition that is ``cheaper`` on the machine, and PyTorch's elsewhere."""

    def decompose_here(*args: Any, **kwargs: Any) -> Any:
        if _has_machine_tensor((args, kwargs)):
            return cheaper(*args, **kwargs)
        return NotImplemented if decompose is None else decompose(*args, **kwargs)

    return decompose_here


# lowerings


_LOOKUPS = tuple(map(overload_of, ("embedding", "embedding_dense_backward", "gather", "index_select")))
_PUTS = tuple(map(overload_of, ("index_put", "index_put_")))
_SCATTERS = tuple(map(overload_of, ("scatter.src", "scatter.value")))


def _selected_elements(node: Node) -> int | None:
    """Return the number of elements that a lookup returns, or that a write changes; None if it is not known."""
    args: Sequence[Any] = node.args
    count = node.meta["val"].numel()
    if node.target in _SCATTERS:
        count = args[2].meta["val"].numel()
    elif node.target in _PUTS:
        shape = args[0].meta["val"].shape
        indices = {axis: index.meta["val"] for axis, index in enumerate(args[1]) if index is not None}
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices.values()):
            return None
        indexed = torch.broadcast_shapes(*[index.shape for index in indices.values()])
        count = prod(indexed) * prod(n for axis, n in enumerate(shape) if axis not in indices)
    return count if isinstance(count, int) else None


def _is_small() -> bool:
    """Return whether few shards for each PE are selected. A fused lookup then costs less than a launch more."""
    node, context = V.graph.current_node, current_context()
    count = None if context is None else _selected_elements(node)
    if context is None or count is None:
        return False
    operand: Any = node.args[0]
    nbytes = count * operand.meta["val"].element_size()
    return bool(nbytes <= _SMALL_SHARDS * SHARD_BYTES * prod(whole_grid(context)))


def _keep_large(lower: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the lowering of an operator on indices, changed to ``call`` the machine's kernel if it is large."""

    def lower_here(*args: Any, **kwargs: Any) -> Any:
        is_fused = not _has_machine_node((args, kwargs)) or _is_small()
        return (lower if is_fused else call)(*args, **kwargs)

    return lower_here


def _index_by_kernel(x: Any, indices: Any) -> Any:
    """Call the machine's kernel. Its result has other strides than PyTorch's rule for traces says."""
    call = lowering.fallback_handler(torch.ops.kernbench.index.default, add_to_fallback_set=False)
    return call(ExternKernel.require_contiguous(x), indices)


def _put_by_kernel(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """Call the machine's kernel that writes to ``x`` itself."""
    return lowering.index_put_fallback(x, indices, values, accumulate)


def _keep_lowering(operator: TorchOperator, lower: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return the lowering of an operator, changed to call the machine's kernel there."""
    call = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lower_here(*args: Any, **kwargs: Any) -> Any:
        if lower is None or (_has_machine_node((args, kwargs)) and not (operator in _LOOKUPS and _is_small())):
            return call(*args, **kwargs)
        return lower(*args, **kwargs)

    return lower_here


def _sums_twice(has_two_steps: Callable[..., bool]) -> Callable[..., bool]:
    """Return the check of whether a variance sums twice, not by Welford's steps, which are slow on the machine."""

    def sums_twice(x: Any, *args: Any, **options: Any) -> bool:
        return _is_machine(x.get_device()) or has_two_steps(x, *args, **options)

    return sums_twice


def _prefers_unfused(prefers: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return the check of whether a bias is added outside of its product, changed to add it inside on the machine."""

    def prefers_elsewhere(match: Any) -> bool:
        return not _is_machine(match.kwargs["inp"].meta["val"].device) and prefers(match)

    return prefers_elsewhere


class _OnHost(TorchDispatchMode):
    """A mode in which operators create tensors on the host in place of the machine."""

    def __torch_dispatch__(
        self, func: TorchOperator, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call an operator with the host's device in place of the machine's."""
        return func(*tree_map(_on_host, args), **tree_map(_on_host, kwargs or {}))


def _on_host(x: object) -> object:
    return torch.device("cpu") if isinstance(x, torch.device) and _is_machine(x) else x


def _fold_on_host(deduce: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that computes a constant of a graph, changed to compute it without launches."""

    def deduce_on_host(self: Any, node: Node) -> Any:
        with _OnHost():
            return deduce(self, node)

    return deduce_on_host


def _is_scaled(can_scale: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return the check of whether a softmax scales its operand after the maximum, which costs more on the machine."""

    def can_scale_elsewhere(match: Any) -> bool:
        operands = [node.meta["val"] for node in match.kwargs.values() if isinstance(node, Node)]
        return not _has_machine_tensor(operands) and can_scale(match)

    return can_scale_elsewhere


def _change_check(patterns: Any, check: Callable[[Any], bool], changed: Callable[[Any], bool]) -> None:
    """Replace the check of the patterns that have ``check``."""
    for entries in patterns.patterns.values():
        for entry in entries:
            if entry.extra_check is check:
                entry.extra_check = changed


def _install_indexed() -> None:
    """Make Inductor call the machine's kernels for large lookups and writes. Small ones are fused."""
    calls: dict[TorchOperator, Callable[..., Any]] = {
        aten.index.Tensor: _index_by_kernel,
        aten.index_put_.default: _put_by_kernel,
    }
    for operator in (aten.index_put.default, *_SCATTERS):
        calls[operator] = lowering.fallback_handler(operator, add_to_fallback_set=False)
    for operator, call in calls.items():
        lowering.lowerings[operator] = _keep_large(lowering.lowerings[operator], call)


def install() -> None:
    """Make Inductor call the machine's kernels in graphs of the machine."""
    folder = joint_graph.UniformValueConstantFolder
    replace(folder, "_deduce_value", _fold_on_host(folder._deduce_value))  # noqa: SLF001 - listed among private names
    table: dict[Any, Any] = decomposition.decompositions
    for operator, cheaper in _CHEAPER.items():
        table[operator] = _decompose_cheaply(cheaper, table.get(operator))
    for operator in _kept():
        if operator in table:
            table[operator] = _keep(table[operator])
        lowering.lowerings[operator] = _keep_lowering(operator, lowering.lowerings.get(operator))
        lowering.add_needs_realized_inputs(operator)
    _install_indexed()
    replace(lowering, "use_two_step_variance", _sums_twice(lowering.use_two_step_variance))
    prefers = post_grad.should_prefer_unfused_addmm
    post_grad.should_prefer_unfused_addmm = _prefers_unfused(prefers)
    _change_check(post_grad.pass_patterns[2], prefers, post_grad.should_prefer_unfused_addmm)
    can_scale = joint_graph._other_is_broadcasted_in_dim  # noqa: SLF001 - listed among private names
    _change_check(joint_graph.pass_patterns[1], can_scale, _is_scaled(can_scale))
