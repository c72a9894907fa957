"""Layers with split weights, named as in Megatron-LM.

Parameters are tensors on the SIP of the rank that creates the layer. They are uninitialised until they are loaded, by
``load`` or by ``copy_`` into ``weight`` and ``bias``.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from kernbench.common.dtypes import I32, Array
from kernbench.common.errors import InputError
from kernbench.kernels.indexing import NOT_HERE, embedding_one_hot, embedding_rows
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.arrays import numeric
from kernbench.runtime_api.context import AnyContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp import ops
from kernbench.tp.mappings import copy_to_tp_region, gather_from_tp_region, reduce_from_tp_region, scatter_to_tp_region
from kernbench.tp.ops import PeGrid, has_whole_rows, matrix_size, weight_policy
from kernbench.tp.parallel_state import SizeError, TensorParallel, parallel_state, split_evenly

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "VocabParallelEmbedding", "shard_of"]

_FEATURES = ("in_features", "out_features")


def shard_of(full: Array, axis: int, torch: AnyContext | None = None) -> Array:
    """Return this rank's shard of an array, which is block ``rank`` along ``axis``, as a view.

    Raises SizeError if the axis cannot be split evenly.
    """
    return _take_shard(np.asarray(full), axis, parallel_state(torch))


class _SplitLinear:
    """The layer ``x W + b`` with W (in, out) split over ranks along ``axis``. b is split with the columns."""

    _axis: ClassVar[Literal[0, 1]]

    def __init__(
        self,
        features: tuple[int, int],
        bias: bool,
        dtype: object,
        dp: DPPolicy | None,
        torch: AnyContext | None,
        name: str,
    ) -> None:
        self._group = parallel_state(torch)
        context = self._group.torch
        shape, other = list(features), 1 - self._axis
        shape[self._axis] = split_evenly(_FEATURES[self._axis], features[self._axis], self._group.world_size)
        shape[other] = split_evenly(_FEATURES[other], features[other], 1)
        self.name = name
        self.in_features, self.out_features = features
        policy = weight_policy(shape[1], dp, context.topology)
        self.weight = context.empty(*shape, dtype=dtype, dp=policy, name=f"{name}.weight")
        if self._axis == 0:
            policy = PeGrid.of(self.weight).copies()
        self.bias = context.empty(shape[1], dtype=dtype, dp=policy, name=f"{name}.bias") if bias else None
        if ops.suits_gemv(1, self.weight, context):
            ops.gather_buffer(1, self.weight, context)  # allocated here, not by the first token

    def load(self, weight: Array, bias: Array | None = None) -> None:
        """Load this rank's shards of the complete ``weight`` (in, out) and ``bias`` (out,).

        Raises SizeError for another shape, and for a missing or superfluous bias.
        """
        _check_shape(f"{self.name}.weight", weight, (self.in_features, self.out_features))
        _check_bias(self.name, self.bias, bias, self.out_features)
        self.weight.copy_(_take_shard(weight, self._axis, self._group))
        if self.bias is not None and bias is not None:
            self.bias.copy_(_take_shard(bias, 0, self._group) if self._axis == 1 else bias)


class ColumnParallelLinear(_SplitLinear):
    """The layer ``x W + b`` with the columns of W, the output features, split over ranks.

    ``weight`` is (in, out / world size), ``bias`` (out / world size,) or None. The input is equal on all ranks. The
    result of ``forward`` is (..., out / world size), or (..., out) on all ranks with ``gather_output``. ``dp`` is the
    placement of the weight in its SIP: ``column_wise`` or ``replicate`` over cubes and PEs. The default is by columns
    over all PEs.
    """

    _axis = 1

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        dtype: object = "f16",
        gather_output: bool = False,
        dp: DPPolicy | None = None,
        torch: AnyContext | None = None,
        name: str = "column",
    ) -> None:
        super().__init__((in_features, out_features), bias, dtype, dp, torch, name)
        self.gather_output = gather_output

    def forward(self, x: Tensor) -> Tensor:
        """Multiply x (..., in). Return a new tensor (..., out / world size), or (..., out) with ``gather_output``."""
        context = self._group.torch
        y = ops.linear(copy_to_tp_region(x, context), self.weight, self.bias, context, self.name)
        if not self.gather_output:
            return y
        gathered = gather_from_tp_region(y, context)
        if gathered is not y:
            y.free()
        return gathered

    __call__ = forward


class RowParallelLinear(_SplitLinear):
    """The layer ``x W + b`` with the rows of W, the input features, split over ranks. The ranks' results are summed.

    ``weight`` is (in / world size, out). ``bias`` is (out,) or None, and is added once, to the sum. The input is this
    rank's shard (..., in / world size). With ``input_is_parallel=False`` the input is (..., in), equal on all ranks.
    The result is (..., out), bitwise equal on all ranks. ``dp``: see ``ColumnParallelLinear``.
    """

    _axis = 0

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        dtype: object = "f16",
        input_is_parallel: bool = True,
        dp: DPPolicy | None = None,
        torch: AnyContext | None = None,
        name: str = "row",
    ) -> None:
        super().__init__((in_features, out_features), bias, dtype, dp, torch, name)
        self.input_is_parallel = input_is_parallel

    def forward(self, x: Tensor) -> Tensor:
        """Multiply x (..., in / world size), or (..., in) unless ``input_is_parallel``. Return a new (..., out)."""
        context = self._group.torch
        part = x if self.input_is_parallel else scatter_to_tp_region(x, context)
        grid = PeGrid.of(self.weight)
        # A single row on one cube: few PEs exchange few messages, and the next layer reads from all slices of the cube.
        reduced_on = PeGrid(1, grid.pes) if self._group.world_size > 1 and matrix_size(part)[0] == 1 else grid
        y = ops.linear(part, self.weight, None, context, self.name, reduced_on)
        if part is not x:
            part.free()
        reduce_from_tp_region(y, context)
        return y if self.bias is None else ops.add_bias_(y, self.bias, context)

    __call__ = forward


def _take_shard(full: Array, axis: int, group: TensorParallel) -> Array:
    size = split_evenly(f"axis {axis} of an array of shape {full.shape}", full.shape[axis], group.world_size)
    index = [slice(None)] * full.ndim
    index[axis] = slice(group.rank * size, (group.rank + 1) * size)
    return np.asarray(full[tuple(index)])


def _check_shape(name: str, array: Array, shape: tuple[int, ...]) -> None:
    if np.shape(array) != shape:
        raise SizeError(f"{name}: the complete array must have shape {shape}, got {np.shape(array)}")


def _check_bias(name: str, bias: Tensor | None, array: Array | None, features: int) -> None:
    if (bias is None) != (array is None):
        has = "no bias" if bias is None else "a bias"
        raise SizeError(f"{name} has {has}; {'omit it' if bias is None else 'pass one'}")
    if array is not None:
        _check_shape(f"{name}.bias", array, (features,))


class VocabParallelEmbedding:
    """A table (vocabulary, features) that maps each id to row ``id``. Rank r has block r of the rows.

    ``weight`` is (num_embeddings / world size, embedding_dim). A rank looks up the ids in its block and uses zeros for
    all other ids; the ranks' results are summed. ``dp`` is the placement of the weight in its SIP: ``row_wise`` or
    ``replicate``. The default is by rows over all PEs.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        dtype: object = "f16",
        dp: DPPolicy | None = None,
        torch: AnyContext | None = None,
        name: str = "embedding",
    ) -> None:
        self._group = parallel_state(torch)
        context = self._group.torch
        rows = split_evenly("num_embeddings", num_embeddings, self._group.world_size)
        self.name, self.num_embeddings = name, num_embeddings
        self.embedding_dim = split_evenly("embedding_dim", embedding_dim, 1)
        policy = dp or PeGrid.of_sip(context.topology).rows(rows)
        self.weight = context.empty(rows, embedding_dim, dtype=dtype, dp=policy, name=f"{name}.weight")
        if not has_whole_rows(self.weight.layout):
            raise InputError(f"dp={dp}: the table of an embedding must be placed row_wise or replicate")

    def load(self, weight: Array) -> None:
        """Load this rank's shard of the complete table (num_embeddings, embedding_dim). Raises SizeError otherwise."""
        shape = self.num_embeddings, self.embedding_dim
        if np.shape(weight) != shape:
            raise SizeError(f"{self.name}.weight: the complete array must have shape {shape}, got {np.shape(weight)}")
        self.weight.copy_(shard_of(weight, 0, self._group.torch))

    def forward(self, x: object) -> Tensor:
        """Look up ids of any shape, equal on all ranks. Return (..., embedding_dim), bitwise equal on all ranks.

        Ids on the host (an array or a list) are arguments of kernels, which load the rows of these ids. InputError is
        raised for ids outside the vocabulary. Ids in an i32 tensor on the machine become one-hot rows that multiply the
        table, because a kernel cannot read an address from memory. Such a lookup costs as much as the matrix product,
        and ids outside the vocabulary yield zeros.
        """
        y = self._from_machine(x) if isinstance(x, Tensor) else self._from_host(x)
        return reduce_from_tp_region(y, self._group.torch)

    __call__ = forward

    @property
    def _first(self) -> int:
        return self._group.rank * self.weight.shape[0]

    def _from_host(self, x: object) -> Tensor:
        ids = numeric(x, self.name)
        if ids.dtype.kind not in "iu" or not ids.size:
            raise InputError(f"{self.name}: ids must be integers, at least one; found {ids.dtype} of shape {ids.shape}")
        outside = ids[(ids < 0) | (ids >= self.num_embeddings)]
        if outside.size:
            raise InputError(f"{self.name}: id {outside[0]} is outside the vocabulary, 0..{self.num_embeddings - 1}")
        y = self._make_output(ids.shape)
        rows = ids.reshape(-1).astype(np.int64) - self._first
        here = (rows >= 0) & (rows < self.weight.shape[0])
        numbers = tuple(np.where(here, rows, NOT_HERE).tolist())
        self._group.torch.launch(self.name, embedding_rows, self.weight, y, numbers, self.embedding_dim, y.dtype)
        return y

    def _from_machine(self, x: Tensor) -> Tensor:
        if x.dtype != I32 or not has_whole_rows(x.layout):
            raise InputError(f"{self.name}: ids on the machine must be i32, by rows; {x.name} is {x.dtype} ({x.dp})")
        y = self._make_output(x.shape)
        sizes = (x.numel(), self._first, self.weight.shape[0], self.embedding_dim, y.dtype)
        self._group.torch.launch(self.name, embedding_one_hot, x, self.weight, y, *sizes)
        return y

    def _make_output(self, ids: tuple[int, ...]) -> Tensor:
        shape = (*(ids or (1,)), self.embedding_dim)
        policy = PeGrid.of(self.weight).rows(shape[0])
        return self._group.torch.empty(shape, dtype=self.weight.dtype, dp=policy, name=f"{self.name}.out")
