"""Compiled graphs of ``mode="reduce-overhead"``: a graph of launches, captured at the second call and then replayed.

As with CUDA graphs, a call returns tensors that the next call overwrites. Inputs at other addresses than those of the
capture are copied to them before a replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from kernbench.common.errors import InputError, text_of
from kernbench.common.values import state, value
from kernbench.frontends.torch.graphs import CUDAGraph, GraphPool, graph_pool_handle
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor

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
