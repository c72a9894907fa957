"""The layers with split weights, under the module name that Megatron-LM gives them."""

from kernbench.tp.embedding import VocabParallelEmbedding
from kernbench.tp.linear import ColumnParallelLinear, RowParallelLinear, shard_of

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "VocabParallelEmbedding", "shard_of"]
