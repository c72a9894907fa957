"""Installation of the front end in Triton, on import, after a check that Triton has every function that is replaced."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from types import ModuleType

import triton
import triton.language as tl
import triton.profiler
from triton._C.libtriton import amd, nvidia
from triton.backends import backends
from triton.language.extra import cuda
from triton.language.extra import libdevice as generic
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from kernbench.common.collector import collect_at_exit
from kernbench.frontends.triton import extra_functions, kernels, memory, recorded, reductions, tuning
from kernbench.frontends.triton.builder import Builder
from kernbench.frontends.triton.driver import PROTON, TritonDriver, install_libraries
from kernbench.frontends.triton.reports import do_bench, report_of
from kernbench.frontends.triton.values import numpy_type

MADE_FOR = "3.9"

# The functions that are replaced, with the parameters that they are expected to have.
_EXPECTED: Mapping[tuple[type | ModuleType, str], str] = {
    (interpreter, "_get_np_dtype"): "tt_dtype",
    (interpreter, "_patch_lang"): "fn",
    (interpreter, "_patch_attr"): "obj name member builder scope",
    (interpreter, "FunctionRewriter"): "fn kwargs",
    (interpreter.ASTTransformer, "visit_Assign"): "self node",
    (JITFunction, "__init__"): (
        "self fn version do_not_specialize do_not_specialize_on_alignment debug noinline repr launch_metadata"
    ),
    (interpreter.InterpretedFunction, "run"): "self args grid warmup kwargs",
    (interpreter.InterpretedFunction, "__call__"): "self args kwargs",
    (interpreter.InterpretedFunction, "rewrite"): "self",
    (tl.standard, "sigmoid"): "",
    (interpreter.ReduceScanOpInterface, "apply"): "self input",
    (interpreter.ReduceOps, "__init__"): "self axis combine_fn keep_dims",
    (interpreter.ScanOps, "__init__"): "self axis combine_fn reverse",
    (interpreter.InterpreterBuilder, "binary_op"): "self lhs rhs op",
    (interpreter.InterpreterBuilder, "unary_op"): "self arg op",
    (interpreter.InterpreterBuilder, "ternary_op"): "self lhs rhs other op",
    (interpreter.InterpreterBuilder, "cast_impl"): "self src dst_type",
    (TritonSemantic, "atomic_max"): "self ptr val mask sem scope",
    (TritonSemantic, "atomic_min"): "self ptr val mask sem scope",
    (TritonSemantic, "atom_red_typechecking_impl"): "self ptr val mask op",
    (Autotuner, "run"): "self args kwargs",
    (Autotuner, "prune_configs"): "self kwargs",
    (Autotuner, "check_disk_cache"): "self tuning_key configs bench_fn",
    (Autotuner, "_bench"): "self args config meta",
    (triton.testing, "do_bench"): "fn warmup rep grad_to_none quantiles return_mode",
    **{(triton.profiler, name): "" for name in PROTON},
    (nvidia.cublas, "CublasLt"): "",
    (amd.hipblas, "HipblasLt"): "",
    (triton.testing.Mark, "_run"): "self bench save_path show_plots print_data diff_col save_precision kwargs",
}


def _check() -> None:
    """Raise ImportError, which names the supported version, if a function of this Triton is missing or has changed."""
    installed = version("triton")
    made_for = f"kernbench.triton is made for triton {MADE_FOR}"
    if not installed.startswith(f"{MADE_FOR}."):
        raise ImportError(f"{made_for}, and this is {installed}: pip install 'kernbench[triton]'")
    expected = dict(_EXPECTED)
    for name, method in vars(Builder).items():
        if name.startswith("create_") and inspect.isfunction(method):
            expected[interpreter.InterpreterBuilder, name] = ""
    for (owner, name), parameters in expected.items():
        member = vars(owner).get(name)
        if not callable(member):
            raise ImportError(f"{made_for}: {owner.__name__} of {installed} has no {name}")
        if parameters and " ".join(inspect.signature(member).parameters) != parameters:
            raise ImportError(f"{made_for}: {owner.__name__}.{name} of {installed} takes {inspect.signature(member)}")


def _transpose(tensor: tl.tensor) -> tl.tensor:
    """Transpose a matrix. Replaces ``tensor.T``, which would read the data."""
    rows, columns = tensor.shape
    transposed = interpreter.interpreter_builder.create_trans(tensor.handle, (1, 0))
    return tl.core.tensor(transposed, tl.core.block_type(tensor.dtype, [columns, rows]))


def _language() -> None:
    """Stand for this module, whose globals contain the language under both of its names."""


def _install() -> None:
    builder = interpreter.interpreter_builder
    builder.__class__ = Builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._get_np_dtype = numpy_type  # noqa: SLF001
    interpreter.ReduceScanOpInterface.apply = reductions.apply
    interpreter.InterpretedFunction.run = kernels.run
    interpreter.InterpretedFunction.__call__ = kernels.call_kernel
    interpreter._patch_attr = recorded.patch  # noqa: SLF001
    # Patch once and permanently: the interpreter would patch for each call of a kernel, and revert after each launch.
    interpreter._patch_lang(_language)  # noqa: SLF001
    for module in (cuda, cuda.gdc, cuda.utils, tl, tl.core):
        for name in extra_functions.list_gpu_names(module):
            setattr(module, name, extra_functions.GPU_FUNCTIONS[name])
    for name, function in extra_functions.list_functions(cuda.libdevice).items():
        for module in (cuda.libdevice, generic):
            recorded.patch(module, name, function, builder, interpreter._LangPatchScope())  # noqa: SLF001
    tl.core.tensor.T = property(_transpose)
    TritonSemantic.atomic_max, TritonSemantic.atomic_min = memory.atomic_max, memory.atomic_min
    Autotuner.run = tuning.run
    Autotuner.prune_configs = tuning.prune
    Autotuner.check_disk_cache = tuning.recall
    Autotuner._bench = tuning.bench  # noqa: SLF001
    triton.testing.do_bench = triton.testing.do_bench_cudagraph = do_bench
    install_libraries(triton.profiler, nvidia, amd)
    triton.testing.Mark._run = report_of(triton.testing.Mark._run)  # noqa: SLF001
    kernels.install()
    backends["nvidia"] = replace(backends["nvidia"], driver=TritonDriver)  # a search for a driver selects this one
    driver.set_active(TritonDriver())
    collect_at_exit()


_language_core = tl.core  # the interpreter looks for it among the globals of a kernel
_check()
_install()
