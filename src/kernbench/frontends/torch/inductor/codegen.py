"""Code that Inductor generates for the machine: Triton kernels, and the Python program that launches them.

Before a launch, the Python program states the calls of the user's program that the launch carries out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface
from torch._inductor.codegen.common import DeviceOpOverrides
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.ir import ExternKernel, IRNode
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.virtualized import V
from torch.fx import GraphModule, Node

from kernbench.common.values import value
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch import device as ahbm
from kernbench.frontends.torch.modules import ProgramPlace, is_library, without_wrappers
from kernbench.runtime_api.context import AnyContext, current_context

RUNTIME = "kernbench.frontends.torch.inductor.runtime"
"""The module of functions that the generated program calls"""
_MOST_OPERATORS = 4
_INDEX = re.compile(r"""\._modules\['([^']*)'\]|\[['"]?([^\]'"]*)['"]?\]""")
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+), in ', re.MULTILINE)


class AhbmInterface(DeviceInterface):  # type: ignore[misc]  # PyTorch's class has no types
    """The machine as a device of PyTorch's compiler."""

    device = ahbm.device
    Event = ahbm.Event
    Stream = ahbm.Stream
    current_device = staticmethod(ahbm.current_device)
    set_device = staticmethod(ahbm.set_device)
    device_count = staticmethod(ahbm.device_count)
    synchronize = staticmethod(ahbm.synchronize)
    current_stream = staticmethod(ahbm.current_stream)  # type: ignore[assignment]  # not PyTorch's class of streams
    memory_allocated = staticmethod(ahbm.memory_allocated)
    is_available = staticmethod(ahbm.is_available)

    class Worker:
        """The functions that a process of the compiler calls."""

        set_device = staticmethod(ahbm.set_device)
        current_device = staticmethod(ahbm.current_device)
        get_device_properties = staticmethod(ahbm.get_device_properties)

    @staticmethod
    def exchange_device(device: int) -> int:
        """Make a SIP the current one, if ``device`` is not negative. Return the SIP that was current."""
        before = ahbm.current_device()
        if device >= 0:
            ahbm.set_device(device)
        return before

    maybe_exchange_device = exchange_device

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:  # noqa: ARG004 - as PyTorch calls it
        """Return the number of a SIP's only stream."""
        return ahbm.Stream.cuda_stream

    @staticmethod
    def get_compute_capability(device: object = None) -> int:  # noqa: ARG004 - as PyTorch calls it
        """Return the compute capability as one number."""
        major, minor = ahbm.get_device_capability()
        return 10 * major + minor

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:  # noqa: ARG004 - as PyTorch calls it
        """Return True: the machine has bf16."""
        return True

    @staticmethod
    def is_triton_capable(device: object = None) -> bool:  # noqa: ARG004 - as PyTorch calls it
        """Return True: Triton kernels run on the machine."""
        return True


class AhbmOverrides(DeviceOpOverrides):  # type: ignore[misc]  # PyTorch's class has no types
    """Statements of the generated program that concern the device."""

    def import_get_raw_stream_as(self, name: str) -> str:
        """Return the definition of the function that returns a stream."""
        return f"def {name}(_): return 0\n"

    def set_device(self, device_idx: int) -> str:
        """Return the statement that makes a SIP the current one."""
        return f"torch.{DEVICE}.set_device({device_idx})"

    def synchronize(self) -> str:
        """Return the statement that waits for all launches."""
        return f"torch.{DEVICE}.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        """Return the context manager that makes a SIP the current one."""
        return f"torch.{DEVICE}.device({device_idx})"

    def current_stream(self) -> str:
        """Return the expression of the current stream."""
        return f"torch.{DEVICE}.current_stream()"


# the generated program


class AhbmWrapper(PythonWrapperCodegen):  # type: ignore[misc]  # PyTorch's class has no types
    """The generator of the Python program that launches kernels."""

    @staticmethod
    def create(
        is_subgraph: bool,  # noqa: ARG004 - as PyTorch calls it
        subgraph_name: str | None,
        parent_wrapper: Any,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        """Return the generator for a graph, or PyTorch's own for a part of one."""
        if subgraph_name is not None:
            return SubgraphPythonWrapperCodegen(subgraph_name, parent_wrapper, partition_signatures)
        return AhbmWrapper()

    def write_header(self) -> None:
        """Write the imports, with the machine's own functions for views and new tensors."""
        super().write_header()
        self.header.writeline(f"from {RUNTIME} import at, empty_strided, reinterpret_tensor")

    def write_origin(self, nodes: Iterable[Node]) -> None:
        """Write the statement that the next launch carries out ``nodes``."""
        origin = origin_of(nodes)
        covers = f", {origin.covers!r}" if origin.covers else ""
        self.writeline(f"at({origin.module!r}, {origin.operators!r}, {origin.file!r}, {origin.line}{covers})")


class AhbmScheduling(TritonScheduling):  # type: ignore[misc]  # PyTorch's class has no types
    """The generator of Triton kernels."""

    def codegen_comment(self, node_schedule: Sequence[Any], kernel_name: str | None = None) -> None:
        """Write the origin of a kernel before its launch."""
        super().codegen_comment(node_schedule, kernel_name)
        wrapper = V.graph.wrapper_code
        if isinstance(wrapper, AhbmWrapper):
            wrapper.write_origin(_nodes_of(node_schedule))


def write_origin_of_extern(comment: Any) -> Any:
    """Return the method of external kernels that writes a comment, changed to write the kernel's origin, too."""

    def codegen_comment(self: ExternKernel, wrapper: PythonWrapperCodegen, kernel_name: str | None = None) -> None:
        comment(self, wrapper, kernel_name)
        if isinstance(wrapper, AhbmWrapper):
            node = self.get_origin_node()
            wrapper.write_origin(self.origins if node is None else [node])

    return codegen_comment


def _nodes_of(node_schedule: Sequence[Any]) -> Iterator[Node]:
    """Yield the graph's nodes that a kernel computes."""
    for entry in node_schedule:
        if isinstance(entry, BaseSchedulerNode) and isinstance(entry.node, IRNode):  # others are marks of the schedule
            yield from entry.node.origins


# the origin of nodes


@value
class NodeOrigin:
    """The nearest common module of nodes of a graph, their operators, and the line of the last of them.

    ``covers``: the modules inside of ``module`` that call operators of several modules.
    """

    module: str
    operators: str
    file: str
    line: int
    covers: tuple[str, ...] = ()


def origin_of(nodes: Iterable[Node]) -> NodeOrigin:
    """Return the origin of ``nodes``, which one kernel computes."""
    calls = sorted({node for node in nodes if node.op.startswith("call_")}, key=_place_in_graph)
    calls = [node for node in calls if _operator_of(node) not in _MOVES] or calls
    names = list(dict.fromkeys(filter(None, map(_operator_of, calls))))
    more = "" if len(names) <= _MOST_OPERATORS else f"+{len(names) - _MOST_OPERATORS} more"
    places = list(filter(None, map(_place_of, calls)))
    place = places[-1] if places else ProgramPlace("", 0)
    common, modules = _common_module(calls), dict.fromkeys(filter(None, map(_module_of, calls)))
    covers = tuple(module for module in modules if module != common)
    return NodeOrigin(common, "+".join(names[:_MOST_OPERATORS]) + more, place.file, place.line, covers)


@cache
def _positions(graph: torch.fx.Graph) -> dict[Node, int]:
    return {node: position for position, node in enumerate(graph.nodes)}


def _place_in_graph(node: Node) -> int:
    return _positions(node.graph).get(node, 0)


_MOVES = frozenset(
    [
        *(
            "_to_copy",
            "_unsafe_view",
            "alias",
            "as_strided",
            "chunk",
            "clone",
            "detach",
            "diagonal",
            "expand",
            "permute",
        ),
        *("reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold"),
        *("unsqueeze", "view"),
    ]
)
"""Operators that only view or copy elements. They name a kernel that has no others."""


def _operator_of(node: Node) -> str:
    """Return the name of the program's operator that a node is a part of."""
    original = node.meta.get("original_aten")
    if isinstance(original, torch._ops.OpOverload):  # noqa: SLF001 - the class of PyTorch's operators
        return original.overloadpacket.__name__
    return str(node.target.overloadpacket.__name__) if isinstance(node.target, torch._ops.OpOverload) else ""  # noqa: SLF001


def _common_module(nodes: Sequence[Node]) -> str:
    """Return the innermost module that contains the calls of all nodes. Nodes that PyTorch adds have no module."""
    paths = [path.split(".") if path else [] for path in map(_module_of, nodes) if path is not None]
    if not paths:
        return ""
    common = paths[0]
    for path in paths[1:]:
        same = [a == b for a, b in zip(common, path, strict=False)]
        common = common[: same.index(False) if False in same else len(same)]
    return ".".join(common)


def _module_of(node: Node) -> str | None:
    """Return the dotted name of the module that called a node, relative to the outermost module.

    Return None for nodes that PyTorch adds, which have no line of the program either.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return None if _place_of(node) is None else ""
    path, _ = list(stack.values())[-1]
    parts = _INDEX.sub(lambda match: f".{match[1] or match[2]}", str(path).removeprefix("L")).split(".")
    return without_wrappers(".".join(part for part in parts[2:] if part))


def _place_of(node: Node) -> ProgramPlace | None:
    """Return the innermost line of the program in a node's stack."""
    frames = [(match["file"], int(match["line"])) for match in _FRAME.finditer(node.meta.get("stack_trace") or "")]
    for file, line in reversed(frames):
        if not is_library(file):
            return ProgramPlace(file, line)
    return None


# the key of a compiled graph in the cache that processes share: generated code names the calls of the program


@cache
def _digest_of_sources() -> str:
    """Return the version of this package, and a digest of the sources that decide what is generated."""
    digest = hashlib.sha256(version("kernbench").encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _describe(graph: GraphModule, context: AnyContext) -> tuple[str, ...]:
    """Return what the code for a graph depends on besides its operators."""
    settings = context.frontends.torch
    places = hashlib.sha256("\n".join(str(origin_of([node])) for node in graph.graph.nodes).encode())
    machine = (context.engine.topology.digest, str(settings.cubes), str(settings.pes), str(context.has_data))
    return (_digest_of_sources(), *machine, places.hexdigest())


def extend_key(init: Callable[..., None]) -> Callable[..., None]:
    """Return the method that collects the parts of a graph's key, changed to collect these, too."""

    @wraps(init)
    def init_here(self: Any, gm: GraphModule, *args: Any, **options: Any) -> None:
        init(self, gm, *args, **options)
        context = current_context()
        self.kernbench = () if context is None else _describe(gm, context)

    return init_here
