"""An embedding whose table is split over ranks by vocabulary."""

from __future__ import annotations

import numpy as np

from kernbench.common.dtypes import I32, Array
from kernbench.common.errors import InputError
from kernbench.kernels.embedding import NOT_HERE, embedding_one_hot, embedding_rows
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.arrays import numeric
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp.layouts import PeGrid, is_row_major
from kernbench.tp.linear import shard_of
from kernbench.tp.mappings import reduce_from_tp_region
from kernbench.tp.parallel_state import SizeError, Torch, parallel_state, split_evenly


class VocabParallelEmbedding:
    """Row ``id`` of a table (vocabulary, features) for each id; rank r has block r of the rows.

    ``weight`` (num_embeddings / world size, embedding_dim). A rank looks up the ids that it has, zeros for the others,
    and the ranks' results are added up. ``dp``: how the weight lies in its SIP, ``row_wise`` or ``replicate``; by rows
    over all PEs when not given.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        dtype: object = "f16",
        dp: DPPolicy | None = None,
        torch: Torch | None = None,
        name: str = "embedding",
    ) -> None:
        self._group = parallel_state(torch)
        context = self._group.torch
        rows = split_evenly("num_embeddings", num_embeddings, self._group.world_size)
        self.name, self.num_embeddings = name, num_embeddings
        self.embedding_dim = split_evenly("embedding_dim", embedding_dim, 1)
        policy = dp or PeGrid.of_sip(context.topology).rows(rows)
        self.weight = context.empty(rows, embedding_dim, dtype=dtype, dp=policy, name=f"{name}.weight")
        if not is_row_major(self.weight.layout):
            raise InputError(f"dp={dp}: the table of an embedding is spread by row_wise or replicate")

    def load(self, weight: Array) -> None:
        """Take this rank's part of the whole table (num_embeddings, embedding_dim)."""
        whole = self.num_embeddings, self.embedding_dim
        if np.shape(weight) != whole:
            raise SizeError(f"{self.name}.weight: the whole of it has shape {whole}, the array {np.shape(weight)}")
        self.weight.copy_(shard_of(weight, 0, self._group.torch))

    def forward(self, x: object) -> Tensor:
        """Ids of any shape, the same on all ranks, to (..., embedding_dim), bit by bit the same on all ranks.

        Ids that the host has (an array, a list) tell kernels which rows to load; InputError for one outside the
        vocabulary. Ids in a tensor of i32 on the machine become one-hot rows that the table is multiplied by, since a
        kernel cannot address memory by what is in memory: as costly as that product, and zeros outside the vocabulary.
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
            raise InputError(f"{self.name}: ids are whole numbers, and at least one; found {ids.dtype} of {ids.shape}")
        outside = ids[(ids < 0) | (ids >= self.num_embeddings)]
        if outside.size:
            raise InputError(f"{self.name}: id {outside[0]} is outside the vocabulary, 0..{self.num_embeddings - 1}")
        y = self._output(ids.shape)
        rows = ids.reshape(-1).astype(np.int64) - self._first
        here = (rows >= 0) & (rows < self.weight.shape[0])
        numbers = tuple(np.where(here, rows, NOT_HERE).tolist())
        self._group.torch.launch(self.name, embedding_rows, self.weight, y, numbers, self.embedding_dim, y.dtype)
        return y

    def _from_machine(self, x: Tensor) -> Tensor:
        if x.dtype != I32 or not is_row_major(x.layout):
            raise InputError(f"{self.name}: ids on the machine are i32, spread by rows; {x.name} is {x.dtype} ({x.dp})")
        y = self._output(x.shape)
        sizes = (x.numel(), self._first, self.weight.shape[0], self.embedding_dim, y.dtype)
        self._group.torch.launch(self.name, embedding_one_hot, x, self.weight, y, *sizes)
        return y

    def _output(self, ids: tuple[int, ...]) -> Tensor:
        shape = (*(ids or (1,)), self.embedding_dim)
        policy = PeGrid.of(self.weight).rows(shape[0])
        return self._group.torch.empty(shape, dtype=self.weight.dtype, dp=policy, name=f"{self.name}.out")
