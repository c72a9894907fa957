"""``torch.autocast`` on ``ahbm``: products in the narrow type, sums and overflow-prone operators in f32."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.utils._pytree import tree_map

from kernbench.frontends.torch.tensor import AhbmTensor, replace

_KEY = "AutocastPrivateUse1"
_KEYS = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(_KEY))  # noqa: SLF001 - its only name
_NARROW = [
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addmv",
    "addbmm",
    "addr",
    "matmul",
    "linear",
    "mv",
    "chain_matmul",
    "linalg_multi_dot",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "scaled_dot_product_attention",
    "prelu",
]
_WIDE = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "group_norm",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "nuclear_norm",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "cross_entropy_loss",
    "softmax.int",
    "log_softmax.int",
    "sum",
    "sum.dim_IntList",
    "prod",
    "cumsum",
    "cumprod",
]
_WIDEST = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "index_put",
    "scatter_add",
    "tensordot",
    "cat",
    "stack",
]
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def _cast_to(dtype: Any) -> Callable[[Any], Any]:
    def cast(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype in _FLOATS and x.device.type != "cpu":
            return x.to(dtype)
        return x

    return cast


def _narrow_type(_: Any) -> Any:
    return torch.get_autocast_dtype("privateuseone")


def _f32(_: Any) -> Any:
    return torch.float32


def _widest(args: Any) -> Any:
    found: list[Any] = []
    tree_map(lambda x: found.append(x.dtype) if isinstance(x, torch.Tensor) and x.dtype in _FLOATS else None, args)
    return torch.float32 if torch.float32 in found or len(set(found)) > 1 else _narrow_type(args)


def _casting(operator: Any, type_of: Callable[[Any], Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        cast = _cast_to(type_of((args, kwargs)))
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):  # noqa: SLF001
            return operator(*tree_map(cast, args), **tree_map(cast, kwargs))

    return call


def _scale_in_f32() -> None:
    """Make gradient scalers compute the reciprocal of their scale in f32, because the machine lacks f64."""
    begin = GradScaler._lazy_init_scale_growth_tracker  # noqa: SLF001 - it creates the scale

    @wraps(begin)
    def begin_here(self: Any, dev: Any) -> None:
        begin(self, dev)
        scale = self._scale
        if isinstance(scale, AhbmTensor):
            replace(scale, "double", lambda: scale)

    replace(GradScaler, "_lazy_init_scale_growth_tracker", begin_here)


def install() -> tuple[Any, Any]:
    """Register the device's autocast with PyTorch, and return the registered libraries.

    Keep a reference to them: PyTorch undoes the registration when they are deleted.
    """
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, _KEY)
    library = torch.library.Library("aten", "IMPL")
    for names, type_of in ((_NARROW, _narrow_type), (_WIDE, _f32), (_WIDEST, _widest)):
        for name in names:
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, _casting(operator, type_of), _KEY)
    _scale_in_f32()
    return others, library
