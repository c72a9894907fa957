"""Tracing of programs for the machine by dynamo: its tensors are plain tensors, and its own code is not traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import config, trace_rules
from torch._dynamo.convert_frame import ConvertFrame
from torch._dynamo.variables import builder

from kernbench.frontends.torch.inductor import polyfills
from kernbench.frontends.torch.inductor.failures import note_breaks
from kernbench.frontends.torch.modules import enter_module, leave_module
from kernbench.frontends.torch.tensor import AhbmTensor, replace


def _infer_subclass_type(infer: Callable[[Any], type | None]) -> Callable[[Any], type | None]:
    """Return the function that finds the class of a traced tensor, changed for tensors of the machine: none."""

    def infer_class(x: Any) -> type | None:
        return None if isinstance(x, AhbmTensor) else infer(x)

    return infer_class


def _return_same(tensor: Tensor, metadata: object, expected_type: type | None = None) -> Tensor:  # noqa: ARG001
    """Return a gradient as the tangent of a compiled backward, which takes any tensor of its shape."""
    return tensor


def install() -> None:
    """Make dynamo trace programs that use tensors of the machine."""
    config.traceable_tensor_subclasses.add(AhbmTensor)
    replace(builder, "infer_subclass_type", _infer_subclass_type(builder.infer_subclass_type))
    builder.VariableBuilder._type_dispatch()[AhbmTensor] = builder.VariableBuilder.wrap_tensor  # noqa: SLF001
    for package in ("kernbench", "greenlet"):
        trace_rules.add(package)
    trace_rules.get_legacy_mod_inlinelist().add(polyfills.__file__)
    torch.compiler.substitute_in_graph(enter_module)(polyfills.enter_module)
    torch.compiler.substitute_in_graph(leave_module)(polyfills.leave_module)
    replace(ConvertFrame, "__call__", note_breaks(ConvertFrame.__call__))
    replace(AhbmTensor, "__coerce_same_metadata_as_tangent__", _return_same)
