"""Installation of the machine in PyTorch's compiler, at the first call of ``torch.compile``.

The import first checks that PyTorch has all private names used here. It needs the front end for Triton.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any

import torch
from torch import _TorchCompileInductorWrapper
from torch._C._dynamo import eval_frame
from torch._dynamo import trace_rules
from torch._dynamo.device_interface import register_interface_for_device
from torch._dynamo.output_graph import SubgraphTracer
from torch._dynamo.variables import builder, torch_function
from torch._dynamo.variables.tensor import TensorVariable
from torch._inductor import codecache, compile_fx, ir, lowering, output_code, scheduler
from torch._inductor import utils as inductor_utils
from torch._inductor.codegen.common import register_backend_for_device, register_device_op_overrides
from torch._inductor.fx_passes import joint_graph, post_grad
from torch._inductor.runtime import autotune_cache, triton_heuristics
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _triton

from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch.inductor import kept, tracing
from kernbench.frontends.torch.inductor.codegen import (
    AhbmInterface,
    AhbmOverrides,
    AhbmScheduling,
    AhbmWrapper,
    extend_key,
    write_origin_of_extern,
)
from kernbench.frontends.torch.inductor.graphs import compile_on_machine, run_traced
from kernbench.frontends.torch.inductor.kernels import run_on_machine
from kernbench.frontends.torch.tensor import replace

MADE_FOR = "2.13"
_NAMES: tuple[tuple[ModuleType | type, str], ...] = (
    (builder, "infer_subclass_type"),
    (builder.VariableBuilder, "_type_dispatch"),
    (builder.VariableBuilder, "wrap_tensor"),
    (eval_frame, "set_code_exec_strategy"),
    (eval_frame, "_FrameAction"),
    (eval_frame, "_FrameExecStrategy"),
    (trace_rules, "add"),
    (trace_rules, "get_legacy_mod_inlinelist"),
    (codecache, "FxGraphHashDetails"),
    (compile_fx, "compile_fx"),
    (compile_fx, "has_triton"),
    (inductor_utils, "GPU_TYPES"),
    (inductor_utils, "get_gpu_type"),
    (inductor_utils, "is_big_gpu"),
    (ir.ExternKernel, "codegen_comment"),
    (output_code, "CompiledFxGraph"),
    (joint_graph, "lazy_init"),
    (joint_graph.UniformValueConstantFolder, "_deduce_value"),
    (joint_graph, "_other_is_broadcasted_in_dim"),
    (joint_graph, "pass_patterns"),
    (lowering, "clone"),
    (lowering, "fallback_handler"),
    (lowering, "index_put_fallback"),
    (lowering, "lowerings"),
    (lowering, "add_needs_realized_inputs"),
    (lowering, "use_two_step_variance"),
    (post_grad, "pass_patterns"),
    (FakeTensorMode, "avoid_device_init"),
    (SubgraphTracer, "create_proxy"),
    (TensorVariable, "method_attr_device"),
    (TensorVariable, "method_attr_is_cuda"),
    (torch_function, "SymbolicTorchFunctionState"),
    (post_grad, "should_prefer_unfused_addmm"),
    (scheduler, "has_triton"),
    (autotune_cache, "has_triton"),
    (triton_heuristics.CachingAutotuner, "run"),
    (triton_heuristics.GridExpr, "from_meta"),
    (_triton, "triton_backend"),
    (_triton, "triton_hash_with_backend"),
    (torch._C, "_len_torch_function_stack"),  # noqa: SLF001
    (torch._C, "_pop_torch_function_stack"),  # noqa: SLF001
    (torch._C, "_push_on_torch_function_stack"),  # noqa: SLF001
    (torch._C._dynamo.guards, "_reinterpret_tensor"),  # noqa: SLF001
)


def _check() -> None:
    """Raise ImportError, which names the supported version, if this PyTorch lacks a name that is used here."""
    for owner, name in _NAMES:
        if name not in vars(owner) and name not in dir(owner):
            raise ImportError(
                f"torch.compile on the machine is made for torch {MADE_FOR}: {owner.__name__} of {version('torch')} "
                f"has no {name}"
            )


def _answer_yes() -> bool:
    """Return True: Triton kernels run."""
    return True


def _hash_of_triton() -> str:
    """Return the digest of the compiler of Triton kernels in the code of kernels: there is none."""
    return DEVICE


def _is_big(is_big: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return the check of whether matrix products are tuned on a device, without its warning for the machine."""

    def is_big_device(device: Any = 0) -> bool:
        return not (isinstance(device, torch.device) and device.type == DEVICE) and is_big(device)

    return is_big_device


def _init_patterns(init: object, device: torch.device | None = None) -> None:  # noqa: ARG001
    """Prepare patterns of graphs with tensors of the host, so that no launch is needed."""
    init(torch.device("cpu"))  # type: ignore[operator]


def _install() -> None:
    _check()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton warns without a choice, which has no effect here
    for name in (DEVICE, f"{DEVICE}:0"):
        register_interface_for_device(name, AhbmInterface)
    register_device_op_overrides(DEVICE, AhbmOverrides())
    register_backend_for_device(DEVICE, AhbmScheduling, AhbmWrapper)
    inductor_utils.GPU_TYPES.append(DEVICE)
    for module in (scheduler, compile_fx, autotune_cache, _triton):
        replace(module, "has_triton", _answer_yes)
    replace(_triton, "triton_hash_with_backend", _hash_of_triton)
    for module in (inductor_utils, post_grad, joint_graph):
        replace(module, "get_gpu_type", lambda: DEVICE)
    replace(inductor_utils, "is_big_gpu", _is_big(inductor_utils.is_big_gpu))
    init = joint_graph.lazy_init
    replace(joint_graph, "lazy_init", lambda device=None: _init_patterns(init, device))
    replace(ir.ExternKernel, "codegen_comment", write_origin_of_extern(ir.ExternKernel.codegen_comment))
    tuner = triton_heuristics.CachingAutotuner
    replace(tuner, "run", run_on_machine(tuner.run))
    wrapper = _TorchCompileInductorWrapper
    replace(wrapper, "__call__", compile_on_machine(wrapper.__call__))
    replace(codecache.FxGraphHashDetails, "__init__", extend_key(codecache.FxGraphHashDetails.__init__))
    replace(output_code.CompiledFxGraph, "__call__", run_traced(output_code.CompiledFxGraph.__call__))
    tracing.install()
    kept.install()
    import_module("torch._inductor.codegen.triton")


_install()
