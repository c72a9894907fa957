"""Compilation of traced graphs: by Inductor, or operator by operator where that is faster or Inductor fails.

With ``mode="reduce-overhead"`` the launches of a graph are captured at the second call, and then replayed. As with CUDA
graphs, a call returns tensors that the next call overwrites. Inputs at other addresses than those of the capture are
copied to them before a replay.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._dynamo.exc import RestartAnalysis, SkipFrame
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch._inductor.compile_fx import compile_fx
from torch._inductor.output_code import CompiledFxGraph
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from kernbench.common.errors import InputError, text_of
from kernbench.common.values import state, value
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch.dispatch import way_of
from kernbench.frontends.torch.graphs import CUDAGraph, GraphPool, graph_pool_handle
from kernbench.frontends.torch.inductor.codegen import origin_of
from kernbench.frontends.torch.inductor.failures import note_failure, reset_after
from kernbench.frontends.torch.modules import ProgramPlace, program_place, set_traced_call, traced_graph
from kernbench.frontends.torch.storage import TorchOperator, current
from kernbench.frontends.torch.tensor import AhbmTensor
from kernbench.runtime_api.context import current_context

CompiledGraph: TypeAlias = Callable[..., Any]
_MOST_SINGLE = 4
"""Maximum number of calls of a graph that may be a single operator, with views of its operands and results"""
_OPTIONS: Mapping[str, Any] = {
    "alignment_asserts": False,
    "assume_aligned_inputs": True,
    "compile_threads": 1,
    "fallback_random": True,
    "layout_optimization": False,
    "shape_padding": False,
    "triton.cudagraphs": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
}
"""Settings of Inductor for the machine. The blocks of kernels follow from the machine, so there is nothing to tune"""


def compile_on_machine(compile_graph: Callable[..., CompiledGraph]) -> Callable[..., CompiledGraph]:
    """Return Inductor's method that compiles a graph, changed for graphs of the machine."""

    def compile_here(
        self: Any, model_: GraphModule, inputs_: Sequence[Any], *, config_patches: Mapping[str, Any] | None = None
    ) -> CompiledGraph:
        if current_context() is None:
            return compile_graph(self, model_, inputs_, config_patches=config_patches)
        if not _is_of_machine(model_):  # the host's work takes no simulated time, compiled or not
            return model_.forward
        options = {**self.config, **(config_patches or {})}
        return _compile(model_, inputs_, options)

    return compile_here


def _compile(graph: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]) -> CompiledGraph:
    """Compile a graph. One that fails to compile, or that is a single launch already, runs operator by operator."""
    context = current()
    reset_after(context)
    eager = GraphModule(graph, copy.deepcopy(graph.graph))
    context.compiled.is_used = True
    context.compiled.graphs += 1
    if _has_flex_attention(graph) or _is_single_launch(graph):
        return _EagerGraph(eager).run
    try:
        with _without_modes():
            compiled: Any = compile_fx(graph, inputs, config_patches={**options, **_OPTIONS})
    except (RestartAnalysis, SkipFrame):
        raise  # dynamo traces again
    except Exception as error:
        place = _first_place(eager)
        note_failure(str(place or "a graph"), error)
        return _EagerGraph(eager).run
    return Replayed.of(compiled) if options.get("triton.cudagraphs") else compiled


def _has_flex_attention(graph: GraphModule) -> bool:
    """Return whether a graph calls ``flex_attention``, which runs by the operators that it consists of."""
    return any(node.target in (flex_attention, flex_attention_backward) for node in graph.graph.nodes)


def _is_single_launch(graph: GraphModule) -> bool:
    """Return whether a graph is a single operator that has a kernel of the machine, besides views."""
    calls = [node for node in graph.graph.nodes if node.op.startswith("call_")]
    if len(calls) > _MOST_SINGLE:
        return False
    recorder = _Recorder()
    operands = [node.meta.get("example_value") for node in graph.graph.find_nodes(op="placeholder")]
    modes = [x.fake_mode for x in operands if isinstance(x, FakeTensor)]
    if not modes:
        return False
    try:
        with _without_modes(), torch.no_grad(), modes[0], recorder:
            _FakeRun(graph, modes[0]).run(*operands)
    except Exception:  # a fault of the graph is raised when it is compiled
        return False
    ways = [way_of(operator).kind for operator in recorder.operators]
    computing = [kind for kind in ways if kind not in ("view", "memory")]
    return len(computing) <= 1 and all(kind in ("kernel", "expression", "list") for kind in computing)


class _FakeRun(Interpreter):  # type: ignore[misc]  # PyTorch's class has no types
    """A run of a graph on tensors without elements, also in place of tensors that the graph itself has."""

    def __init__(self, graph: GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(graph)
        self._mode = mode

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return an attribute of the graph, without elements if it is a tensor."""
        return tree_map_only(Tensor, self._mode.from_tensor, super().get_attr(target, args, kwargs))


class _Recorder(TorchDispatchMode):
    """A mode that records the operators of PyTorch that a function calls."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[TorchOperator] = []

    def __torch_dispatch__(
        self, func: TorchOperator, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Record and call an operator."""
        self.operators.append(func)
        return func(*args, **(kwargs or {}))


def run_traced(run: Callable[[CompiledFxGraph, Sequence[Any]], Any]) -> Callable[[CompiledFxGraph, Sequence[Any]], Any]:
    """Return the method that runs a compiled graph, changed so that launches name the calls that they carry out.

    A forward graph and its backward graph are two such graphs.
    """

    def run_here(graph: CompiledFxGraph, inputs: Sequence[Any]) -> Any:
        if current_context() is None:
            return run(graph, inputs)
        with traced_graph(program_place()), _without_modes():
            return run(graph, inputs)

    return run_here


@contextmanager
def _without_modes() -> Iterator[None]:
    """Leave the program's modes inside the ``with`` block, in which "cuda" may mean the machine."""
    count = torch._C._len_torch_function_stack()  # noqa: SLF001 - as dynamo does
    modes = [torch._C._pop_torch_function_stack() for _ in range(count)]  # noqa: SLF001
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)  # noqa: SLF001


def _is_of_machine(graph: GraphModule) -> bool:
    """Return whether a tensor of a graph is on the machine."""
    values = [node.meta.get("example_value") for node in graph.graph.nodes]
    return any(isinstance(x, Tensor) and x.device.type == DEVICE for x in tree_leaves(values))


def _first_place(graph: GraphModule) -> ProgramPlace | None:
    for node in graph.graph.nodes:
        origin = origin_of([node])
        if origin.file:
            return ProgramPlace(origin.file, origin.line)
    return None


class _EagerGraph(Interpreter):  # type: ignore[misc]  # PyTorch's class has no types
    """A graph that runs operator by operator; launches name the module and the line of each call."""

    def run_node(self, n: Node) -> Any:
        """Run one node."""
        if n.op in ("call_function", "call_method"):
            origin = origin_of([n])
            set_traced_call(origin.module, "", ProgramPlace(origin.file, origin.line) if origin.file else None)
        return super().run_node(n)

    def run(self, *args: Any, **options: Any) -> Any:
        """Run the graph."""
        with traced_graph(program_place()):
            return super().run(*args, **options)


# replays

_Layout = tuple[object, ...]


@value
class _Capture:
    """A captured graph, the inputs that it reads, the positions of those that it writes, and its results."""

    graph: CUDAGraph
    inputs: tuple[Any, ...]
    written: frozenset[int]
    outputs: Any


@state
class Replayed:
    """A compiled graph that is replayed. ``_captures`` has a capture for each list of shapes, None if there is none."""

    _run: Callable[..., Any]
    _captures: dict[_Layout, _Capture | None]
    _seen: dict[_Layout, frozenset[int]]
    _pool: GraphPool

    @staticmethod
    def of(run: Callable[..., Any]) -> Replayed:
        """Return a graph that has not been called."""
        return Replayed(run, {}, {}, graph_pool_handle())

    def __call__(self, *args: Any) -> Any:
        """Run the graph, or replay its launches."""
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args):
            return self._run(*args)  # a gradient needs the results of each call
        if any(isinstance(x, Tensor) and not isinstance(x, AhbmTensor) for x in args):
            return self._run(*args)
        key = tuple(map(_layout_of, args))
        if key not in self._seen:
            return self._warm_up(key, args)
        if key not in self._captures:
            self._captures[key] = self._capture(args, self._seen[key])
        capture = self._captures[key]
        if capture is None or not _supply(capture, args):
            return self._run(*args)
        capture.graph.replay()
        return capture.outputs

    def _warm_up(self, key: _Layout, args: tuple[Any, ...]) -> Any:
        """Run once without a capture, and note which inputs are written."""
        versions = [x._version if isinstance(x, Tensor) else 0 for x in args]  # noqa: SLF001 - documented
        result = self._run(*args)
        pairs = zip(args, versions, strict=True)
        changed = [at for at, (x, n) in enumerate(pairs) if isinstance(x, Tensor) and x._version != n]  # noqa: SLF001
        self._seen[key] = frozenset(changed)
        return result

    def _capture(self, args: tuple[Any, ...], written: frozenset[int]) -> _Capture | None:
        """Capture the launches of a call; return None, with a remark, if the host takes part in them."""
        context, graph = current(), CUDAGraph()
        context.accelerator.synchronize()
        graph.capture_begin(self._pool)
        outputs: Any = None
        try:
            outputs = self._run(*args)
        except InputError as error:
            context.remarks.append(f"torch.compile: reduce-overhead: no graph of launches: {text_of(error)}")
            return None
        finally:
            graph.capture_end()
        inputs = tuple([x.detach() if isinstance(x, Tensor) else x for x in args])
        shared = {id(x.backing) for x in inputs if isinstance(x, AhbmTensor)}
        if any(isinstance(x, AhbmTensor) and id(x.backing) in shared for x in tree_leaves(outputs)):
            return None  # a view of an input has to be one of the input of each call
        return _Capture(graph, inputs, written, outputs)


def _layout_of(x: Any) -> object:
    return (x.dtype, tuple(x.shape), x.stride()) if isinstance(x, Tensor) else x


def _supply(capture: _Capture, args: tuple[Any, ...]) -> bool:
    """Copy inputs at other addresses; return False if the graph writes one of these."""
    moved = [
        at
        for at, (x, static) in enumerate(zip(args, capture.inputs, strict=True))
        if isinstance(x, AhbmTensor) and x.data_ptr() != static.data_ptr()
    ]
    if capture.written.intersection(moved):
        return False
    for at in moved:
        capture.inputs[at].copy_(args[at])
    return True
