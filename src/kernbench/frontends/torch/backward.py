"""Keep what is raised inside PyTorch's backward, and raise it when backward is over.

While PyTorch's engine carries an operator out, or a hook of the program, it holds a guard of the device, which calls
Python when it goes. With an exception on its way that ends the process, so none may pass the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.hooks import BackwardHook

from kernbench.frontends.torch.tensor import AhbmTensor, stand_in
from kernbench.runtime_api.context import RuntimeContext, current_context

Callback = Callable[..., Any]


def is_in_backward() -> bool:
    """Tell whether the engine is carrying backward out."""
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001 - how PyTorch's own tracer asks


def call_or_keep(context: RuntimeContext[Any], call: Callback, instead: Callback) -> Any:
    """Return what ``call`` gives inside backward; what it raises is kept, and from then on ``instead`` is called.

    Also what ends the run: an interrupt, a limit.
    """
    if not context.has_deferred:
        try:
            return call()
        except BaseException as error:
            context.defer(error)
    return instead()


def keep_errors(hook: Callback, instead: Callback = lambda *_: None) -> Callback:
    """Return a hook for the engine: what it raises is kept, and ``instead`` of its arguments is what it returns."""

    @wraps(hook)
    def call(*args: Any, **kwargs: Any) -> Any:
        context = current_context()
        if context is None or not is_in_backward():
            return hook(*args, **kwargs)
        return call_or_keep(context, lambda: hook(*args, **kwargs), lambda: instead(*args))

    return call


def _check_result(hook: Callback) -> Callback:
    """Return a hook of a tensor that refuses what the engine would."""

    @wraps(hook)
    def call(grad: Any) -> Any:
        found = hook(grad)
        if found is not None and not isinstance(found, torch.Tensor):
            raise TypeError(f"hook of a tensor: it returned {type(found).__name__}, must be a tensor or None")
        return found

    return call


def _register_hook(tensor: Any, hook: Callback) -> Any:
    return _REGISTER_HOOK(tensor, keep_errors(_check_result(hook)))


def _register_accumulate_hook(tensor: Any, hook: Callback) -> Any:
    return _REGISTER_ACCUMULATE_HOOK(tensor, keep_errors(hook))


_REGISTER_HOOK = torch.Tensor.register_hook
_REGISTER_ACCUMULATE_HOOK = torch.Tensor.register_post_accumulate_grad_hook


class _Node:
    """A node of backward, as the hooks of a module see it."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def register_hook(self, hook: Callback) -> Any:
        """Let the engine call a hook after the node."""
        return self._node.register_hook(keep_errors(hook))


class _Packed:
    """A saved tensor as the program keeps it, and the tensor's form."""

    def __init__(self, x: AhbmTensor, kept: Any) -> None:
        self.kept = kept
        self._form, self._dtype, self._like = tuple(x.shape), x.dtype, x.detach()

    def stand_in(self) -> AhbmTensor:
        """Return a tensor of the form that nobody has written."""
        return stand_in(self._form, self._dtype, self._like)


def install() -> None:
    """Keep the errors of hooks: of tensors, of modules, and of what unpacks saved tensors, as checkpoints do."""
    AhbmTensor.register_hook = _register_hook
    AhbmTensor.register_post_accumulate_grad_hook = _register_accumulate_hook
    apply_on_tensors = BackwardHook._apply_on_tensors  # noqa: SLF001
    BackwardHook._apply_on_tensors = lambda self, fn, args: apply_on_tensors(self, lambda node: fn(_Node(node)), args)  # noqa: SLF001
    make = saved_tensors_hooks.__init__

    @wraps(make)
    def make_saved(self: Any, pack_hook: Callback, unpack_hook: Callback) -> None:
        unpack = keep_errors(lambda packed: unpack_hook(packed.kept), lambda packed: packed.stand_in())

        def pack_with_form(x: Any) -> Any:
            return _Packed(x, pack_hook(x)) if isinstance(x, AhbmTensor) else pack_hook(x)

        make(self, pack_with_form, lambda packed: (unpack if isinstance(packed, _Packed) else unpack_hook)(packed))

    saved_tensors_hooks.__init__ = make_saved
    run_backward = torch.autograd._engine_run_backward  # noqa: SLF001

    @wraps(run_backward)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return run_backward(*args, **kwargs)
        finally:
            context = current_context()
            if context is not None and not is_in_backward():
                context.raise_deferred()

    torch.autograd._engine_run_backward = run  # noqa: SLF001
