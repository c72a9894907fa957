"""Tracing of programs for the machine by dynamo: its tensors are plain tensors, and its own code is not traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo import eval_frame
from torch._dynamo import config, trace_rules
from torch._dynamo.convert_frame import ConvertFrame
from torch._dynamo.output_graph import SubgraphTracer
from torch._dynamo.source import TorchFunctionModeStackSource
from torch._dynamo.variables import builder, torch_function
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.tensor import TensorVariable
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import flex_attention
from torch.utils._pytree import tree_map

from kernbench.core.clock import Clock
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch.device_names import is_factory, translate, with_number
from kernbench.frontends.torch.inductor import polyfills
from kernbench.frontends.torch.inductor.failures import note_breaks
from kernbench.frontends.torch.modules import enter_module, leave_module
from kernbench.frontends.torch.tensor import AhbmTensor, SaysCuda, replace
from kernbench.runtime_api.context import current_context


def _infer_subclass_type(infer: Callable[[Any], type | None]) -> Callable[[Any], type | None]:
    """Return the function that finds the class of a traced tensor, changed for tensors of the machine: none."""

    def infer_class(x: Any) -> type | None:
        return None if isinstance(x, AhbmTensor) else infer(x)

    return infer_class


# programs that call the machine "cuda"


def _calls_cuda() -> bool:
    """Return whether the program calls the machine "cuda". A trace runs without the program's modes."""
    context = current_context()
    return context is not None and context.frontends.torch.as_cuda


def _leave_out_mode(init: Callable[..., None]) -> Callable[..., None]:
    """Return the method that lists the modes of a trace, without the mode in which "cuda" means the machine."""

    def init_here(self: Any, py_stack: Iterable[Any], *args: Any, **options: Any) -> None:
        init(self, (), *args, **options)
        for at, mode in enumerate(py_stack):
            if not isinstance(mode, SaysCuda):
                source = TorchFunctionModeStackSource(at)
                self.mode_stack.append(LazyVariableTracker.create(mode, source=source))

    return init_here


def _translate_calls(create: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that adds a call to a graph, changed to name the machine in place of "cuda"."""

    def create_here(self: Any, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        if _calls_cuda():
            args, kwargs = tree_map(translate, args), tree_map(translate, kwargs)
            if kind == "call_method" and target == "cuda":
                index = args[1] if len(args) > 1 and isinstance(args[1], int) else None
                target, args, kwargs = "to", (args[0], DEVICE if index is None else f"{DEVICE}:{index}"), {}
        return create(self, kind, target, args, kwargs, *rest, **options)

    return create_here


def _device_of(attribute: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of a traced tensor's ``device``, under the name that the program uses."""

    def device_here(self: Any, tx: Any) -> Any:
        device = self.device
        if device is not None and device.type == DEVICE and _calls_cuda():
            return VariableTracker.build(tx, torch.device("cuda", device.index))
        return attribute(self, tx)

    return device_here


def _is_cuda(attribute: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of a traced tensor's ``is_cuda``: True where the program calls the machine "cuda"."""

    def is_cuda_here(self: Any, tx: Any) -> Any:
        if self.device is not None and self.device.type == DEVICE and _calls_cuda():
            return VariableTracker.build(tx, True)
        return attribute(self, tx)

    return is_cuda_here


def _install_cuda() -> None:
    state = torch_function.SymbolicTorchFunctionState
    replace(state, "__init__", _leave_out_mode(state.__init__))
    replace(SubgraphTracer, "create_proxy", _translate_calls(SubgraphTracer.create_proxy))
    replace(TensorVariable, "method_attr_device", _device_of(TensorVariable.method_attr_device))
    replace(TensorVariable, "method_attr_is_cuda", _is_cuda(TensorVariable.method_attr_is_cuda))


def _return_same(tensor: Tensor, metadata: object, expected_type: type | None = None) -> Tensor:  # noqa: ARG001
    """Return a gradient as the tangent of a compiled backward, which takes any tensor of its shape."""
    return tensor


def _copies_in_graph(avoids: Callable[[FakeTensorMode], bool]) -> Callable[[FakeTensorMode], bool]:
    """Return the rule of whether ``torch.tensor(..., device=...)`` copies to the device in the graph, not in the trace.

    In a trace of a program for the machine it does: a trace has no launches.
    """

    def avoids_here(mode: FakeTensorMode) -> bool:
        return current_context() is not None or avoids(mode)

    return avoids_here


def install() -> None:
    """Make dynamo trace programs that use tensors of the machine."""
    config.traceable_tensor_subclasses.add(AhbmTensor)
    replace(builder, "infer_subclass_type", _infer_subclass_type(builder.infer_subclass_type))
    builder.VariableBuilder._type_dispatch()[AhbmTensor] = builder.VariableBuilder.wrap_tensor  # noqa: SLF001
    for package in ("kernbench", "greenlet"):
        trace_rules.add(package)
    # A traced call may wait for launches. Their kernels run then, and are not code of the program.
    skip = eval_frame._FrameAction.SKIP  # noqa: SLF001 - listed among private names
    strategy = eval_frame._FrameExecStrategy(skip, skip)  # noqa: SLF001 - listed among private names
    eval_frame.set_code_exec_strategy(Clock.advance.__code__, strategy)
    trace_rules.get_legacy_mod_inlinelist().add(polyfills.__file__)
    torch.compiler.substitute_in_graph(enter_module)(polyfills.enter_module)
    torch.compiler.substitute_in_graph(leave_module)(polyfills.leave_module)
    torch.compiler.substitute_in_graph(with_number)(polyfills.with_number)
    torch.compiler.substitute_in_graph(is_factory)(polyfills.is_factory)
    torch.compiler.substitute_in_graph(flex_attention._validate_device)(polyfills.validate_device)  # noqa: SLF001
    torch.compiler.substitute_in_graph(flex_attention._warn_once)(polyfills.warn_once)  # noqa: SLF001
    replace(ConvertFrame, "__call__", note_breaks(ConvertFrame.__call__))
    _install_cuda()
    avoids = vars(FakeTensorMode)["avoid_device_init"].fget
    replace(FakeTensorMode, "avoid_device_init", property(_copies_in_graph(avoids)))
    replace(AhbmTensor, "__coerce_same_metadata_as_tangent__", _return_same)
