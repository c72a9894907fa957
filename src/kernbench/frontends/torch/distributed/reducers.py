"""The reducer of DistributedDataParallel, which PyTorch wrote in C++: what it needs of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.frontends.torch.storage import CallArguments, CallOptions, TorchOperator
from kernbench.frontends.torch.tensor import replace
from kernbench.runtime_api.context import current_context

_EMPTY = (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default)
_COUNTS_USE: ContextVar[bool] = ContextVar("counts_use", default=False)
"""True in a rank with a reducer that exchanges which parameters were used."""


class _Unpinned(TorchDispatchMode):
    """A mode in which all host tensors count as pinned: the machine copies from all host memory alike.

    The reducer copies its map of used parameters through pinned memory, for which a device in Python has no allocator.
    """

    def __torch_dispatch__(
        self,
        func: TorchOperator,
        types: Iterable[type],
        args: CallArguments = (),
        kwargs: CallOptions | None = None,
    ) -> Any:
        """Call ``func`` without a request for pinned memory."""
        if func is torch.ops.aten.is_pinned.default:
            return True
        named = dict(kwargs or {})
        if func in _EMPTY:
            named.pop("pin_memory", None)
        return func(*args, **named)


def unpinned() -> AbstractContextManager[object]:
    """Return a mode for backward in which the reducers of this rank need no pinned memory."""
    return _Unpinned() if _COUNTS_USE.get() else nullcontext()


def _note_use(function: Callable[..., Any], counts: Callable[..., bool]) -> Callable[..., Any]:
    """Return ``function``, changed to note a reducer that exchanges which parameters were used."""

    @wraps(function, updated=())
    def call(*args: Any, **named: Any) -> Any:
        if current_context() is not None and counts(*args, **named):
            _COUNTS_USE.set(True)
        return function(*args, **named)

    return call


_PLAIN_LOGGER: Any = vars(dist)["Logger"]


class _Logger(_PLAIN_LOGGER):  # type: ignore[misc]
    """The logger of a reducer, which times CPUs and GPUs in real time; on another device it would only warn."""

    def set_runtime_stats_and_log(self) -> None:
        """Time the last iteration, except in a program on the machine."""
        if current_context() is None:
            super().set_runtime_stats_and_log()


def install() -> None:
    """Note the reducers that exchange which parameters were used, and do not time them."""
    replace(dist, "Logger", _Logger)
    replace(dist, "Reducer", _note_use(vars(dist)["Reducer"], lambda *args, **named: True in (*args, *named.values())))
    static = vars(DistributedDataParallel)["_set_static_graph"]
    replace(DistributedDataParallel, "_set_static_graph", _note_use(static, lambda *_, **__: True))
