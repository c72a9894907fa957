"""The table of PyTorch's operators: the name of each, and how it runs on ``ahbm``.

A key is the name of an operator without ``aten::``, for all its overloads, or ``name.overload`` for one of them. Forms
of an operator follow the operator itself, without a row: ``name_`` (in place), overloads with ``out=``, and
``_foreach_name`` (a list of tensors). A row is one of

- `kernel`: a function of this package, with the operator's parameters; `factory`: the function gets the operator, too,
- `expression`: an elementwise rule, one launch,
- `VIEW`: a view of the same storage, no launch; `MEMORY`: an uninitialised tensor,
- `DECOMPOSED`: PyTorch replaces the operator by others, each of which has its own row,
- `HOST`: the host runs the operator, with a copy both ways, listed as unmodelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._library.custom_ops import OPDEFS

from kernbench.frontends.torch import (
    bags,
    batch_norm,
    collectives,
    complexes,
    convolution,
    indexing,
    making,
    norms,
    optimizers,
    order,
    pooling,
    products,
    quantised,
    randoms,
    recurrent,
    reductions,
    resampling,
    traced,
)
from kernbench.frontends.torch.pointwise import Rule
from kernbench.frontends.torch.storage import TorchOperator
from kernbench.frontends.torch.tensor import resize
from kernbench.frontends.torch.ways import (
    COMPOSITE,
    HOST,
    MEMORY,
    REFUSED_LAYOUT,
    VIEW,
    VIEW_IN_PLACE,
    OperatorWay,
    decomposition,
    expression,
    factory,
    in_place_of,
    is_composite,
    is_view,
    kernel,
    on_list,
    with_out,
)
from kernbench.frontends.torch.without_kernel import DECOMPOSED_NAMES, HOST_NAMES, MEMORY_NAMES, VIEW_NAMES
from kernbench.kernels import functions
from kernbench.kernels.functions import call

aten = torch.ops.aten

_NO_STRIDES = ("nested_", "sparse_", "jagged_")
"""Prefixes of operators on tensors that are not strided, which are refused."""

_KERNELS: Mapping[str, Callable[..., Any]] = {
    # products
    "mm.default mm.dtype mm.out mm.dtype_out": products.mm,
    "bmm.default bmm.dtype bmm.out bmm.dtype_out": products.bmm,
    "addmm.default addmm.out": products.addmm,
    "_addmm_activation.default _addmm_activation.out": products.addmm_activation,
    "baddbmm.default baddbmm.out": products.baddbmm,
    "addbmm.default": products.addbmm,
    "dot.default": products.dot,
    "mv.default": products.mv,
    "_grouped_mm.default": products.grouped_mm,
    "_scaled_mm.default _scaled_mm.out": quantised.scaled_mm,
    "_int_mm.default _int_mm.out": quantised.int_mm,
    "_weight_int8pack_mm.default": quantised.weight_int8pack_mm,
    "_convert_weight_to_int4pack.default": quantised.convert_weight_to_int4pack,
    "_weight_int4pack_mm.default": quantised.weight_int4pack_mm,
    # reductions and normalisation
    "sum.default sum.dim_IntList": reductions.sum_elements,
    "mean.default mean.dim": reductions.mean,
    "amax.default": reductions.amax,
    "amin.default": reductions.amin,
    "max.default": reductions.max_elements,
    "min.default": reductions.min_elements,
    "any.default any.dim any.dims _is_any_true.default": reductions.any_elements,
    "all.default all.dim all.dims _is_all_true.default": reductions.all_elements,
    "linalg_vector_norm.default": reductions.linalg_vector_norm,
    "var_mean.correction": reductions.var_mean,
    "var.correction": reductions.var,
    "std.correction": reductions.std,
    "prod.default prod.dim_int": reductions.prod_elements,
    "equal.default": reductions.equal,
    "allclose.default": reductions.allclose,
    "histc.default": reductions.histc,
    "bincount.default": reductions.bincount,
    "smooth_l1_loss_backward.default": reductions.smooth_l1_loss_backward,
    "logsumexp.default": reductions.logsumexp,
    "_safe_softmax.default": reductions.safe_softmax,
    "_softmax.default": reductions.softmax,
    "_log_softmax.default": reductions.log_softmax,
    "_softmax_backward_data.default": reductions.softmax_backward_data,
    "_log_softmax_backward_data.default": reductions.log_softmax_backward_data,
    "native_layer_norm.default": norms.native_layer_norm,
    "native_layer_norm_backward.default": norms.native_layer_norm_backward,
    "_fused_rms_norm.default": norms.fused_rms_norm,
    "_fused_rms_norm_backward.default": norms.fused_rms_norm_backward,
    "native_batch_norm.default": batch_norm.native_batch_norm,
    "native_batch_norm_backward.default": batch_norm.native_batch_norm_backward,
    "_weight_norm_interface_backward.default": norms.weight_norm_interface_backward,
    "_cdist_forward.default": reductions.cdist_forward,
    "_cdist_backward.default": reductions.cdist_backward,
    # order
    "max.dim": order.max_dim,
    "min.dim": order.min_dim,
    "argmax.default": order.argmax,
    "argmin.default": order.argmin,
    "cumsum.default": order.cumsum,
    "cummax.default": order.cummax,
    "cummin.default": order.cummin,
    "sort.default sort.stable": order.sort,
    "topk.default": order.topk,
    "median.default": order.median,
    "median.dim": order.median_dim,
    "nanmedian.default": order.nanmedian,
    "nanmedian.dim": order.nanmedian_dim,
    "kthvalue.default": order.kthvalue,
    "searchsorted.Tensor searchsorted.Scalar": order.searchsorted,
    "bucketize.Tensor bucketize.Scalar": order.bucketize,
    "_unique2.default": order.unique2,
    "unique_dim.default": order.unique_dim,
    "unique_consecutive.default": order.unique_consecutive,
    # indices
    "index_select.default": indexing.index_select,
    "embedding.default": indexing.embedding,
    "embedding_dense_backward.default": indexing.embedding_dense_backward,
    "_embedding_bag.default _embedding_bag_forward_only.default": bags.embedding_bag,
    "_embedding_bag_backward.default": bags.embedding_bag_backward,
    "_embedding_bag_per_sample_weights_backward.default": bags.embedding_bag_per_sample_weights_backward,
    "gather.default": indexing.gather,
    "scatter.src scatter.value": indexing.scatter,
    "scatter_.src scatter_.value": indexing.scatter_,
    "scatter_add.default": indexing.scatter_add,
    "scatter_add_.default": indexing.scatter_add_,
    "scatter_reduce.two": indexing.scatter_reduce,
    "scatter_reduce_.two": indexing.scatter_reduce_,
    "index_add.default": indexing.index_add,
    "index_add_.default": indexing.index_add_,
    "index_copy.default": indexing.index_copy,
    "index_copy_.default": indexing.index_copy_,
    "index.Tensor _unsafe_index.Tensor": indexing.index_tensor,
    "index_put.default _unsafe_index_put.default": indexing.index_put,
    "index_put_.default _index_put_impl_.default": indexing.index_put_,
    "nonzero.default": indexing.nonzero,
    "masked_select.default": indexing.masked_select,
    "masked_scatter.default": indexing.masked_scatter,
    # convolution, recurrent cells, resampling
    "convolution.default convolution_overrideable.default": convolution.convolution,
    "convolution_backward.default convolution_backward_overrideable.default": convolution.convolution_backward,
    "max_pool2d_with_indices.default": pooling.max_pool(aten.max_pool2d_with_indices.default, 2),
    "max_pool3d_with_indices.default": pooling.max_pool(aten.max_pool3d_with_indices.default, 3),
    "max_pool2d_with_indices_backward.default": pooling.max_pool_backward(
        aten.max_pool2d_with_indices_backward.default, 2
    ),
    "max_pool3d_with_indices_backward.default": pooling.max_pool_backward(
        aten.max_pool3d_with_indices_backward.default, 3
    ),
    "adaptive_max_pool2d.default": pooling.adaptive_max_pool(aten.adaptive_max_pool2d.default),
    "adaptive_max_pool3d.default": pooling.adaptive_max_pool(aten.adaptive_max_pool3d.default),
    "adaptive_max_pool2d_backward.default": pooling.adaptive_max_pool_backward(
        aten.adaptive_max_pool2d_backward.default, 2
    ),
    "adaptive_max_pool3d_backward.default": pooling.adaptive_max_pool_backward(
        aten.adaptive_max_pool3d_backward.default, 3
    ),
    "avg_pool2d.default": pooling.avg_pool(aten.avg_pool2d.default, 2),
    "avg_pool3d.default": pooling.avg_pool(aten.avg_pool3d.default, 3),
    "avg_pool2d_backward.default": pooling.avg_pool_backward(aten.avg_pool2d_backward.default, 2),
    "avg_pool3d_backward.default": pooling.avg_pool_backward(aten.avg_pool3d_backward.default, 3),
    "_adaptive_avg_pool2d.default": pooling.adaptive_avg_pool(aten._adaptive_avg_pool2d.default),  # noqa: SLF001
    "_adaptive_avg_pool3d.default": pooling.adaptive_avg_pool(aten._adaptive_avg_pool3d.default),  # noqa: SLF001
    "_adaptive_avg_pool2d_backward.default": pooling.adaptive_avg_pool_backward(
        aten._adaptive_avg_pool2d_backward.default,  # noqa: SLF001
        2,
    ),
    "_adaptive_avg_pool3d_backward.default": pooling.adaptive_avg_pool_backward(
        aten._adaptive_avg_pool3d_backward.default,  # noqa: SLF001
        3,
    ),
    "_thnn_fused_lstm_cell.default": recurrent.lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl.default": recurrent.lstm_cell_backward,
    "_thnn_fused_gru_cell.default": recurrent.gru_cell,
    "_thnn_fused_gru_cell_backward.default": recurrent.gru_cell_backward,
    "_pack_padded_sequence.default": recurrent.pack_padded_sequence,
    "upsample_nearest1d_backward.default": resampling.upsample_backward(aten.upsample_nearest1d.default),
    "upsample_nearest2d_backward.default": resampling.upsample_backward(aten.upsample_nearest2d.default),
    "upsample_nearest3d_backward.default": resampling.upsample_backward(aten.upsample_nearest3d.default),
    "_upsample_nearest_exact1d_backward.default": resampling.upsample_backward(aten._upsample_nearest_exact1d.default),  # noqa: SLF001
    "_upsample_nearest_exact2d_backward.default": resampling.upsample_backward(aten._upsample_nearest_exact2d.default),  # noqa: SLF001
    "_upsample_nearest_exact3d_backward.default": resampling.upsample_backward(aten._upsample_nearest_exact3d.default),  # noqa: SLF001
    "upsample_linear1d_backward.default": resampling.upsample_backward(aten.upsample_linear1d.default),
    "upsample_bilinear2d_backward.default": resampling.upsample_backward(aten.upsample_bilinear2d.default),
    "upsample_trilinear3d_backward.default": resampling.upsample_backward(aten.upsample_trilinear3d.default),
    "upsample_bicubic2d_backward.default": resampling.upsample_backward(aten.upsample_bicubic2d.default),
    # optimizers
    "_foreach_norm.Scalar": optimizers.foreach_norm,
    "_amp_foreach_non_finite_check_and_unscale_.default": optimizers.unscale_,
    "_amp_update_scale_.default": optimizers.update_scale_,
    "_fused_sgd_.default _fused_sgd_.tensor_lr": optimizers.fused_sgd_,
    "_fused_adamw_.default _fused_adamw_.tensor_lr": optimizers.fused_adamw_,
    "_fused_adam_.default _fused_adam_.tensor_lr": optimizers.fused_adam_,
    # random numbers
    "multinomial.default": randoms.multinomial,
    "bernoulli.default bernoulli.out": randoms.bernoulli,
    "native_dropout.default": randoms.native_dropout,
    "normal.Tensor_float normal.Tensor_float_out": randoms.normal,
    "normal.float_Tensor normal.float_Tensor_out": randoms.normal,
    "normal.Tensor_Tensor normal.Tensor_Tensor_out": randoms.normal,
    "rand.out rand.generator_out": randoms.rand_out,
    "randn.out randn.generator_out": randoms.randn_out,
    "randint.out randint.generator_out randint.low_out randint.low_generator_out": randoms.randint_out,
    # other
    "resize_.default": lambda x, size, **_: resize(x, tuple(size)),
    "_conj.default _conj_physical.default": complexes.conj,
    "_has_same_storage_numel.default": making.has_same_storage_numel,
}
_COPIES: Mapping[str, Callable[..., Any]] = {
    "fill_.Scalar fill_.Tensor": making.fill,
    "zero_.default": making.zero_,
    "copy_.default": making.copy,
    "_copy_from.default": making.copy_from,
    "_local_scalar_dense.default": making.local_scalar_dense,
    "cat.default cat.out": making.cat,
    "_chunk_cat.default _chunk_cat.out": making.chunk_cat,
    "split_with_sizes_copy.out": making.split_into,
    "repeat.default": making.repeat,
    "flip.default": making.flip,
    "roll.default": making.roll,
    "eye.out eye.m_out": making.eye,
    "linspace.out": making.linspace,
    "logspace.out": making.logspace,
    "constant_pad_nd.default": making.constant_pad,
    "slice_backward.default": making.slice_backward,
    "select_backward.default": making.select_backward,
}
_FACTORIES: Mapping[str, Callable[..., Any]] = {
    "zeros zeros_like new_zeros _efficientzerotensor": making.filled_with(lambda *_, **__: 0),
    "ones ones_like new_ones": making.filled_with(lambda *_, **__: 1),
    "full full_like": making.filled_with(lambda _, number, **__: number),
    "new_full": making.filled_with(lambda _, __, number, **___: number),
    "scalar_tensor": making.filled_with(lambda number, **_: number),
    "arange": making.arange,
    "clone lift_fresh_copy": making.clone,
    "_to_copy": making.to_copy,
}
_DRAWS: Mapping[str, Callable[..., Any]] = {
    "bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ uniform_ random_": randoms.draw,
    "rand_like": randoms.drawn_like(aten.uniform_.default),
    "randn_like": randoms.drawn_like(aten.normal_.default),
    "bernoulli.p": randoms.drawn_anew(aten.bernoulli_.float),
    "cauchy": randoms.drawn_anew(aten.cauchy_.default),
    "exponential": randoms.drawn_anew(aten.exponential_.default),
    "geometric": randoms.drawn_anew(aten.geometric_.default),
    "log_normal": randoms.drawn_anew(aten.log_normal_.default),
    "uniform": randoms.drawn_anew(aten.uniform_.default),
}

_SINGLE = """
    exp exp2 log log2 log10 log1p expm1 sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid
    silu erf erfc erfinv lgamma neg abs relu floor ceil trunc mul maximum minimum fmax fmin atan2 hypot copysign
"""
"""Operators that are one operation of ``tl``, with the same name."""
_COMPARISONS = "eq ne lt le gt ge signbit isnan isinf isfinite"
EXPRESSIONS: Mapping[str, Rule] = MappingProxyType(
    {name: Rule(call(name), "result") for name in _SINGLE.split()}
    | {name: Rule(call(name), "operands") for name in _COMPARISONS.split()}
    | {
        "add": Rule(functions.scaled("add"), "result"),
        "sub": Rule(functions.scaled("sub"), "result"),
        "rsub": Rule(functions.flipped_sub, "result"),
        "div": Rule(functions.divide, "result"),
        "floor_divide": Rule(functions.floor_divide),
        "remainder": Rule(functions.remainder),
        "fmod": Rule(call("rem"), "result"),
        "pow": Rule(functions.power),
        "square": Rule(functions.square, "result"),
        "reciprocal": Rule(call("recip"), "result"),
        "round": Rule(functions.round_even, "result"),
        "sign": Rule(functions.sign),
        "clamp": Rule(functions.clamp, "result"),
        "clamp_min": Rule(call("maximum"), "result"),
        "clamp_max": Rule(call("minimum"), "result"),
        "hardtanh": Rule(functions.hardtanh, "result"),
        "gelu": Rule(functions.gelu),
        "gelu_backward": Rule(functions.gelu_backward),
        "silu_backward": Rule(functions.silu_backward),
        "sigmoid_backward": Rule(functions.sigmoid_backward),
        "tanh_backward": Rule(functions.tanh_backward),
        "threshold_backward": Rule(functions.threshold_backward),
        "hardsigmoid": Rule(functions.hardsigmoid),
        "hardswish": Rule(functions.hardswish),
        "leaky_relu": Rule(functions.leaky_relu),
        "leaky_relu_backward": Rule(functions.leaky_relu_backward),
        "elu": Rule(functions.elu),
        "softplus": Rule(functions.softplus),
        "softplus_backward": Rule(functions.softplus_backward),
        "mish": Rule(functions.mish),
        "lerp": Rule(functions.lerp),
        "addcmul": Rule(functions.addcmul),
        "addcdiv": Rule(functions.addcdiv),
        "where": Rule(functions.where, "result", (0,)),
        "masked_fill": Rule(functions.masked_fill, "result", (1,)),
        "hardshrink": Rule(functions.hardshrink),
        "hardshrink_backward": Rule(functions.shrink_backward),
        "softshrink_backward": Rule(functions.shrink_backward),
        "logical_not": Rule(functions.logical_not, "operands"),
        "logical_and": Rule(functions.logical("and"), "operands"),
        "logical_or": Rule(functions.logical("or"), "operands"),
        "logical_xor": Rule(functions.logical("xor"), "operands"),
        "bitwise_and": Rule(call("and"), "result"),
        "bitwise_or": Rule(call("or"), "result"),
        "bitwise_xor": Rule(call("xor"), "result"),
        "bitwise_left_shift": Rule(call("shl"), "result"),
        "bitwise_right_shift": Rule(call("shr"), "result"),
        "__lshift__": Rule(call("shl"), "result"),
        "__rshift__": Rule(call("shr"), "result"),
        "__and__": Rule(call("and"), "result"),
        "__or__": Rule(call("or"), "result"),
        "__xor__": Rule(call("xor"), "result"),
        "bitwise_not": Rule(call("not"), "result"),
    }
)
"""Rules of elementwise operators: the function of elements, and the type in which it computes."""

_REFUSED_COLLECTIVE = OperatorWay("refused", collectives.refuse)


@cache
def _decomposed(operator: TorchOperator) -> OperatorWay:
    return COMPOSITE if is_composite(operator) else decomposition(decomposition_table[operator])


DECOMPOSED = OperatorWay(
    "decomposition", lambda operator, args, kwargs: _decomposed(operator).run(operator, args, kwargs)
)


def _rows() -> Iterator[tuple[str, OperatorWay]]:
    """Yield the rows of the table."""
    for names, function in (*_KERNELS.items(), *_COPIES.items()):
        for name in names.split():
            yield name, kernel(function)
    for names, function in (*_FACTORIES.items(), *_DRAWS.items()):
        for name in names.split():
            yield name, factory(function)
    for name, rule in EXPRESSIONS.items():
        yield name, expression(rule)
    for names, way in (
        (VIEW_NAMES, VIEW),
        (MEMORY_NAMES, MEMORY),
        (DECOMPOSED_NAMES, DECOMPOSED),
        (HOST_NAMES, HOST),
    ):
        for name in names.split():
            yield name, way


def _table() -> Mapping[str, OperatorWay]:
    rows: dict[str, OperatorWay] = {}
    for name, way in _rows():
        assert name not in rows, f"two rows of {name}"
        rows[name] = way
    return MappingProxyType(rows)


TABLE = _table()
CREATES = frozenset(
    [name.partition(".")[0] for names in (*_COPIES, *_FACTORIES, *_DRAWS) for name in names.split()]
) | frozenset(["stack", "_foreach_copy_", "_foreach_zero_", "rand", "randn", "randint"])
"""Names of operators that fill, copy or draw tensors and read no elements otherwise, as initialisation does."""


@cache
def way_of(operator: TorchOperator) -> OperatorWay:
    """Return how an operator runs: by its row in the table, or by the row of the operator of which it is a form."""
    row = _row_of(operator) or _way_of_form(operator)
    if row is not None:
        return row
    return DECOMPOSED if is_composite(operator) or operator in decomposition_table else HOST


def _row_of(operator: TorchOperator) -> OperatorWay | None:
    """Return the row of an operator. For an operator of the program or of a library, return its function."""
    if operator.namespace in collectives.NAMESPACES:
        function = collectives.LOWERINGS.get(operator)
        return _REFUSED_COLLECTIVE if function is None else kernel(function)
    if operator.namespace == traced.NAMESPACE:
        return kernel(traced.LOWERINGS[operator]) if operator in traced.LOWERINGS else None
    if operator.namespace != "aten":
        defined = OPDEFS.get(operator._schema.name)  # noqa: SLF001 - as subclasses use it
        return None if defined is None else kernel(defined._init_fn)  # noqa: SLF001
    name, overload = operator.overloadpacket.__name__, operator._overloadname  # noqa: SLF001
    row = TABLE.get(f"{name}.{overload}")
    has_out = any(argument.is_out for argument in operator._schema.arguments)  # noqa: SLF001
    return TABLE.get(name) if row is None and not has_out else row


def _way_of_form(operator: TorchOperator) -> OperatorWay | None:
    """Return the way of a form of another operator: ``out=``, in place, or on lists; None for any other operator."""
    name = operator.overloadpacket.__name__
    if name.lstrip("_").startswith(_NO_STRIDES):
        return REFUSED_LAYOUT
    by_result = with_out(operator)
    if by_result is not None:
        return by_result
    if torch.Tag.inplace_view in operator.tags:
        return VIEW_IN_PLACE
    if operator.namespace != "aten":
        return VIEW if is_view(operator) else None
    if name.startswith("_foreach_"):
        return on_list(EXPRESSIONS.get(name.removeprefix("_foreach_").rstrip("_")))
    return _way_in_place(operator, name) if name.endswith("_") and not name.endswith("__") else None


def _way_in_place(operator: TorchOperator, name: str) -> OperatorWay | None:
    """Return the way of ``name_``: the expression of ``name``, PyTorch's decomposition, or ``name`` and a copy."""
    row = TABLE.get(name[:-1])
    if row is not None and row.kind == "expression":
        return row
    if is_composite(operator):
        return COMPOSITE
    functional = _functional(operator, name)
    parts = decomposition_table.get(operator)
    if parts is not None and (functional is None or way_of(functional).kind != "kernel"):
        return decomposition(parts)
    return None if functional is None or way_of(functional).kind == "host" else in_place_of(functional)


def _functional(operator: TorchOperator, name: str) -> TorchOperator | None:
    """Return the out-of-place form of an in-place operator, or None."""
    try:
        functional: TorchOperator = getattr(getattr(aten, name[:-1]), operator._overloadname)  # noqa: SLF001
    except AttributeError:  # there is no such form
        return None
    return functional
