"""Registration of device ``ahbm`` with PyTorch, on import, and functions of PyTorch that run differently on it.

The import first checks that PyTorch has all names used here. Backward raises exceptions of its nodes and hooks.
``torch.jit`` runs a function operator by operator. ``torch.compile`` imports PyTorch's compiler at its first call.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from importlib.metadata import version
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, ParamSpec, TypeVar
from warnings import filterwarnings

import torch
from torch import Tensor
from torch._C import _distributed_c10d
from torch._higher_order_ops.flex_attention import (
    flex_attention,
    flex_attention_backward,
    sdpa_dense,
    sdpa_dense_backward,
)
from torch._library import triton as triton_operators
from torch.autograd import graph
from torch.distributed import distributed_c10d
from torch.jit import _trace
from torch.library import Library
from torch.nn.attention import flex_attention as flex
from torch.nn.utils import clip_grad
from torch.optim import optimizer
from torch.utils import _foreach_utils, backend_registration
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from kernbench.common.collector import collect_at_exit
from kernbench.common.errors import InputError
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch import autocast, collectives, device, device_names, moving, operators
from kernbench.frontends.torch.attention import scaled_dot_product_attention
from kernbench.frontends.torch.device_names import see_as_program
from kernbench.frontends.torch.distributed import joining, pipelines, processes, reducers, worlds
from kernbench.frontends.torch.distributed.importing import change_module, import_before, import_behind
from kernbench.frontends.torch.distributed.reducers import unpinned
from kernbench.frontends.torch.hosted import leaves
from kernbench.frontends.torch.making import assume_zeros
from kernbench.frontends.torch.modules import follow_modules
from kernbench.frontends.torch.norms import renorm, renorm_in_place, rms_norm
from kernbench.frontends.torch.refusals import check_operands
from kernbench.frontends.torch.storage import TorchOperator, current, overload_of
from kernbench.frontends.torch.tensor import AhbmTensor, dispatch_by, is_called_cuda, replace
from kernbench.frontends.torch.ways import REFUSED_LAYOUT, is_composite
from kernbench.runtime_api.context import current_context

MADE_FOR = "2.13"
NOTE = "torch.compile: ran eagerly, operator by operator (torch.compile=eager)"
TRACE_NOTE = "torch.jit.trace: the trace is not checked: PyTorch does that in float64, which the machine does not have"
FLEX_NOTE = "flex_attention: ran operator by operator, with all scores in memory"

aten = torch.ops.aten
_P = ParamSpec("_P")
_R = TypeVar("_R")
_NAMES: tuple[tuple[ModuleType | type, str], ...] = (
    (backend_registration, "_setup_privateuseone_for_python_backend"),
    (torch.Tensor, "_make_wrapper_subclass"),
    (triton_operators, "wrap_triton_enabled_default"),
    (torch.library, "_impls"),
    (optimizer, "_foreach_supported_types"),
    (clip_grad, "_has_foreach_support"),
    (torch.autograd, "_engine_run_backward"),
    (_trace, "_check_trace"),
    (flex, "_validate_device"),
    (flex, "_warn_once"),
    (torch._C._autograd, "_push_saved_tensors_default_hooks"),  # noqa: SLF001
    (torch._C, "_swap_tensor_impl"),  # noqa: SLF001
    (torch._C._acc, "DeviceGuard"),  # noqa: SLF001
    (distributed_c10d, "_World"),
    (distributed_c10d, "_world"),
    (_distributed_c10d, "_set_thread_isolation_mode"),
    (torch.nn.init, "_no_grad_trunc_normal_"),
    (torch.multiprocessing, "spawn"),
    (torch.multiprocessing, "start_processes"),
    (torch.multiprocessing, "get_context"),
    *[(owner, name) for owner, name, _ in collectives.REPLACED],
)


def check_names(names: Sequence[tuple[Any, str]]) -> None:
    """Raise ImportError, which names the supported version, if this PyTorch lacks one of ``names`` of its owners."""
    installed = version("torch")
    made_for = f"kernbench.torch is made for torch {MADE_FOR}"
    if not installed.startswith(f"{MADE_FOR}."):
        raise ImportError(f"{made_for}, and this is {installed}: pip install 'kernbench[torch]'")
    for owner, name in names:
        if name not in vars(owner) and name not in dir(owner):
            raise ImportError(f"{made_for}: {owner.__name__} of {installed} has no {name}")


# operators


def _runs(name: str) -> Callable[..., Any]:
    operator = overload_of(name)
    return lambda *args, **kwargs: operators.run(operator, args, kwargs)


def _max_pool1d(*args: Any, **kwargs: Any) -> Tensor:
    """Pool by PyTorch's composite operator. It accepts integers, which the CPU's kernel refuses."""
    pooled: Tensor = aten.max_pool1d.default.decompose(*args, **kwargs)
    return pooled


def _ctc_loss(log_probs: Tensor, targets: Tensor, *lengths_and_rule: Any) -> Tensor:
    """Compute the loss with the lengths on the data's device, because PyTorch divides by them without moving them."""
    lengths = [x.to(log_probs.device) for x in lengths_and_rule[:2]]
    loss: Tensor = aten.ctc_loss.Tensor.decompose(log_probs, targets, *lengths, *lengths_and_rule[2:])
    return loss


_COMPOSITES: Mapping[TorchOperator, Callable[..., Any]] = MappingProxyType(
    {
        aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
        aten.rms_norm.default: rms_norm,
        aten.renorm.default: renorm,
        aten.renorm_.default: renorm_in_place,
        aten.max_pool1d.default: _max_pool1d,
    }
)
"""Composite operators of PyTorch that have a separate kernel, here or on the CPU."""


_OF_WRAPPERS: dict[tuple[TorchOperator, type], Callable[..., Any]] = {}
"""Functions that run composite operators on tensors of a class that wraps tensors of the machine."""


def run_wrapped(operator: TorchOperator, wrapper: type, function: Callable[..., Any]) -> None:
    """Run a composite operator by ``function`` if a class of tensors is among its operands."""
    _OF_WRAPPERS[operator, wrapper] = function


def _check_operands_before(operator: TorchOperator, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` of a composite operator, preceded by PyTorch's check of its operands.

    Tensors of a class that wraps others have a function of their own, or PyTorch's composition.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        wrapper = next((type(x) for x in leaves(args, kwargs) if is_traceable_wrapper_subclass(x)), None)
        if wrapper is None or not is_composite(operator):
            check_operands(operator, args, kwargs)
            return function(*args, **kwargs)
        return _OF_WRAPPERS.get((operator, wrapper), operator.decompose)(*args, **kwargs)

    return call


# backward


_raise_pending = ctypes.pythonapi.Py_IsInitialized
"""Any function of Python's C interface: after its call, ``ctypes`` raises a pending exception."""


class _StoredError(threading.local):
    """The exception that was pending in a thread; each rank has a thread of its own."""

    error: BaseException | None = None


class AhbmGuard(torch._C._acc.DeviceGuard):  # noqa: SLF001 - the documented base
    """The guard of device ``ahbm``. It switches no device, because no thread has a current device of its own.

    PyTorch's engine holds a guard while it runs a node of backward or a hook of the program. At the end, the engine
    calls the guard's Python method for the device type. If an exception were pending then, the call would return
    nothing, and the process would end. The method therefore stores the exception, for its thread, and the call of
    backward raises it.
    """

    __slots__ = ("_stored",)  # a lookup in a dictionary would fail while an exception is pending

    def __init__(self) -> None:
        super().__init__()
        self._stored = _StoredError()

    def type_(self) -> Any:  # PyTorch declares another type than it needs
        """Return the type of the device. Store a pending exception for `raise_stored`."""
        try:
            _raise_pending()
        except BaseException as error:
            trace = error.__traceback__
            self._stored.error = self._stored.error or error.with_traceback(trace and trace.tb_next)
        return torch._C._autograd.DeviceType.PrivateUse1  # noqa: SLF001 - its only name

    def raise_stored(self) -> None:
        """Raise the stored exception, if there is one, and forget it."""
        error, self._stored.error = self._stored.error, None
        if error is not None:
            raise error


def _install_backward(guard: AhbmGuard) -> None:
    """Make backward raise the exception that ``guard`` stored. In hooks of the program, "cuda" means the machine."""
    run_backward = graph._engine_run_backward  # noqa: SLF001

    @wraps(run_backward)
    def run(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        guard.raise_stored()
        gradients: tuple[Tensor, ...] = ()
        failure = None
        try:
            # The simulation needs one thread. Leaving inference mode would let the engine use several.
            with see_as_program(), unpinned(), torch.autograd.set_multithreading_enabled(False):
                gradients = run_backward(*args, **kwargs)
        except SystemError as error:  # from the engine, since the guard has stored the exception
            failure = error
        guard.raise_stored()
        if failure is not None:
            raise failure
        return gradients

    replace(torch.autograd, "_engine_run_backward", run)


# compilers


def _install_compile() -> None:
    """Make ``torch.compile`` compile for the machine. The compiler is imported at its first call."""
    compile_it = torch.compile

    @wraps(compile_it)
    def compile_here(model: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
        context = current_context()
        if context is not None and model is not None and _is_part_of_flex(model):
            return model
        if context is not None and context.frontends.torch.compile == "eager":
            context.remarks.append(NOTE)
            return (lambda function: function) if model is None else model
        try:
            import_module("kernbench.frontends.torch.inductor.installed")
        except ImportError as error:
            if context is None:
                return compile_it(model, **options)
            if context.frontends.torch.strict:
                raise
            context.remarks.append(f"torch.compile: ran eagerly, operator by operator: {error}")
            return (lambda function: function) if model is None else model
        # The module of ``torch.compile`` has no entry of its own in the list of running modules. Each run has its own
        # list of warnings to ignore.
        filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
        return compile_it(model, **options)

    replace(torch, "compile", compile_here)


def _is_part_of_flex(function: Callable[..., Any]) -> bool:
    """Return whether ``flex_attention`` itself compiles a function: outside of a compiled program, it need not."""
    return isinstance(function, FunctionType) and function.__code__ in flex.flex_attention.__code__.co_consts


def _install_trace() -> None:
    """Skip the comparison in float64 that ``torch.jit.trace`` makes on the machine."""
    check = _trace._check_trace  # noqa: SLF001

    @wraps(check)
    def check_elsewhere(inputs: object, *args: object, **options: object) -> None:
        if any(isinstance(x, AhbmTensor) for x in tree_leaves(inputs)):
            current().remarks.append(TRACE_NOTE)
        else:
            check(inputs, *args, **options)

    replace(_trace, "_check_trace", check_elsewhere)


def _install_flex_attention() -> None:
    """Run ``flex_attention`` and its backward by the operators that PyTorch uses for devices without a fused kernel."""
    flex_attention.py_impl(AhbmTensor)(_note_flex(sdpa_dense))
    flex_attention_backward.py_impl(AhbmTensor)(sdpa_dense_backward)
    validate, warn = flex._validate_device, flex._warn_once  # noqa: SLF001

    def validate_elsewhere(query: Tensor, key: Tensor, value: Tensor) -> None:
        if not isinstance(query, AhbmTensor):
            validate(query, key, value)

    def warn_elsewhere(warning_id: str, message: str, category: type[Warning] = UserWarning) -> None:
        if warning_id != "flex_attention_performance" or current_context() is None:  # the remark replaces the warning
            warn(warning_id, message, category)

    replace(flex, "_validate_device", validate_elsewhere)
    replace(flex, "_warn_once", warn_elsewhere)


def _note_flex(run: Callable[_P, _R]) -> Callable[_P, _R]:
    @wraps(run)
    def run_here(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        current().remarks.append(FLEX_NOTE)
        return run(*args, **kwargs)

    return run_here


# other functions of PyTorch


def _install_truncated_normal() -> None:
    """Make ``trunc_normal_`` draw once in a run without data, which cannot tell which numbers are out of range."""
    draw = vars(torch.nn.init)["_no_grad_trunc_normal_"]

    @wraps(draw)
    def draw_here(*args: Any, **options: Any) -> Tensor:
        with assume_zeros():
            drawn: Tensor = draw(*args, **options)
        return drawn

    replace(torch.nn.init, "_no_grad_trunc_normal_", draw_here)


def _supports_lists(tensors: list[Tensor], device: torch.device) -> bool:
    """Return whether list operators accept these tensors. PyTorch's own check accepts only its own classes."""
    supports = _foreach_utils._has_foreach_support  # noqa: SLF001 - PyTorch's own rule
    return supports(tensors, device) or all(x is None or isinstance(x, AhbmTensor) for x in tensors)


def _refuse_storage(_: object, location: str) -> None:
    """Raise InputError for ``torch.load`` onto the machine: PyTorch would copy raw bytes there."""
    name = location.partition(":")[0]
    if name == DEVICE or (name == "cuda" and is_called_cuda()):
        raise InputError(
            f"torch.load: map_location is {location!r}, must be the host; load with map_location='cpu', "
            "then move it: load_state_dict, or .to(...)"
        )


def _register() -> Sequence[Library]:
    """Register the device and its operators, and return the registered libraries.

    Keep a reference to them: PyTorch undoes the registration when they are deleted.
    """
    setup = backend_registration._setup_privateuseone_for_python_backend  # noqa: SLF001 - the documented way
    setup(DEVICE, backend_module=device, device_guard=_guard)
    dispatch_by(operators.run)
    library = Library("aten", "IMPL")
    for name in operators.BY_DEVICE:
        library.impl(name, _runs(name), "PrivateUse1")
    fallback = Library("_", "IMPL")
    fallback.fallback(lambda operator, *args, **kwargs: operators.run(operator, args, kwargs), "PrivateUse1")
    fallback.fallback(REFUSED_LAYOUT.run, "NestedTensorPrivateUse1")
    for operator, function in _COMPOSITES.items():
        library.impl(
            operator.overloadpacket.__name__, _check_operands_before(operator, function), "AutogradPrivateUse1"
        )
    library.impl("ctc_loss.Tensor", _ctc_loss, "AutogradPrivateUse1")
    return library, fallback, *autocast.install()


def _replace_functions() -> None:
    """Replace functions and settings of PyTorch for programs that run on the machine."""
    # ``wrap_triton`` exists for tracing. Here nothing is traced, so the kernel itself is launched.
    triton_operators.wrap_triton_enabled_default = False
    torch.serialization.register_package(0, lambda _: None, _refuse_storage)
    replace(clip_grad, "_has_foreach_support", _supports_lists)
    optimizer._foreach_supported_types.append(AhbmTensor)  # noqa: SLF001 - optimisers then use operators on lists
    _install_compile()
    _install_trace()
    _install_flex_attention()
    _install_truncated_normal()
    # For evaluation, PyTorch's encoders use fused operators. Here only the unfused operators have kernels.
    torch.backends.mha.set_fastpath_enabled(False)
    moving.install()
    device_names.install()
    collectives.install()
    worlds.install()
    joining.install()
    processes.install()
    reducers.install()
    pipelines.install()
    _install_backward(_guard)
    # The simulation runs in one thread. A backward pass in another thread would be outside of it.
    torch.autograd.set_multithreading_enabled(False)


def _collect_frames(_: ModuleType) -> None:
    """Collect the reference cycle of all running frames that the import of PyTorch's compiler leaves.

    It would keep their tensors alive, and memory would be reused later in the first run of a process than in the next.
    """
    gc.collect()


check_names(_NAMES)
_guard = AhbmGuard()
_libraries = _register()
_replace_functions()
follow_modules()
import_behind("torch.distributed.tensor._api", "kernbench.frontends.torch.distributed.sharding")
change_module("torch._dynamo", _collect_frames)
# Operators import Triton, in parts of PyTorch's compiler: its interpreter is selected before.
import_before("triton", "kernbench.frontends.triton")
collect_at_exit()  # PyTorch loads Triton's library
