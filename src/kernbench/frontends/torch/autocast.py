"""``torch.autocast`` on ``ahbm``: products in the narrow type, sums and overflow-prone operators in f32."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.library import Library, fallthrough_kernel
from torch.utils._pytree import tree_leaves, tree_map

from kernbench.frontends.torch.storage import CallArguments, CallOptions, TorchOperator, overload_of
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


def _narrow_type(_: CallArguments, __: CallOptions) -> torch.dtype:
    return torch.get_autocast_dtype("privateuseone")


def _f32(_: CallArguments, __: CallOptions) -> torch.dtype:
    return torch.float32


def _widest(args: CallArguments, kwargs: CallOptions) -> torch.dtype:
    types = {x.dtype for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.dtype in _FLOATS}
    return torch.float32 if torch.float32 in types or len(types) > 1 else _narrow_type(args, kwargs)


def _casting(
    operator: TorchOperator, type_of: Callable[[CallArguments, CallOptions], torch.dtype]
) -> Callable[..., Any]:
    """Return a function that runs an operator with its floating-point operands cast to the type of ``type_of``."""

    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = type_of(args, kwargs)

        def cast(x: object) -> object:
            return x.to(dtype) if isinstance(x, Tensor) and x.dtype in _FLOATS and x.device.type != "cpu" else x

        with torch._C._ExcludeDispatchKeyGuard(_KEYS):  # noqa: SLF001
            return operator(*tree_map(cast, args), **tree_map(cast, kwargs))

    return run


def _scale_in_f32() -> None:
    """Make gradient scalers compute the reciprocal of their scale in f32, because the machine lacks f64."""
    begin = GradScaler._lazy_init_scale_growth_tracker  # noqa: SLF001 - it creates the scale

    @wraps(begin)
    def begin_here(self: GradScaler, dev: torch.device) -> None:
        begin(self, dev)
        scale = self._scale
        if isinstance(scale, AhbmTensor):
            replace(scale, "double", lambda: scale)

    replace(GradScaler, "_lazy_init_scale_growth_tracker", begin_here)


def install() -> tuple[Library, Library]:
    """Register the device's autocast with PyTorch, and return the registered libraries.

    Keep a reference to them: PyTorch undoes the registration when they are deleted.
    """
    fallback = Library("_", "IMPL")
    fallback.fallback(fallthrough_kernel, _KEY)
    library = Library("aten", "IMPL")
    for names, type_of in ((_NARROW, _narrow_type), (_WIDE, _f32), (_WIDEST, _widest)):
        for name in names:
            library.impl(name, _casting(overload_of(name), type_of), _KEY)
    _scale_in_f32()
    return fallback, library
