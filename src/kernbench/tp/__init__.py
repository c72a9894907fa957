"""Tensor parallelism after Megatron-LM: layers whose weights are split over the ranks, one rank per SIP."""

from kernbench.tp.block import (
    AttentionWeights,
    BlockWeights,
    LayerNorm,
    MlpWeights,
    ParallelAttention,
    ParallelMLP,
    TransformerBlock,
)
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding, shard_of
from kernbench.tp.mappings import (
    copy_to_tp_region,
    gather_from_tp_region,
    reduce_from_tp_region,
    scatter_to_tp_region,
)
from kernbench.tp.parallel_state import (
    GroupsError,
    NotInitializedError,
    SizeError,
    destroy_model_parallel,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    initialize_model_parallel,
    model_parallel_is_initialized,
)

__all__ = [
    "AttentionWeights",
    "BlockWeights",
    "ColumnParallelLinear",
    "GroupsError",
    "LayerNorm",
    "MlpWeights",
    "NotInitializedError",
    "ParallelAttention",
    "ParallelMLP",
    "RowParallelLinear",
    "SizeError",
    "TransformerBlock",
    "VocabParallelEmbedding",
    "copy_to_tp_region",
    "destroy_model_parallel",
    "gather_from_tp_region",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_world_size",
    "initialize_model_parallel",
    "model_parallel_is_initialized",
    "reduce_from_tp_region",
    "scatter_to_tp_region",
    "shard_of",
]
