"""Public names of the tensor layouts that algorithms accept; the code is in ``layouts``."""

from kernbench.ccl.layouts import (
    VALIDATORS,
    TensorLike,
    Validator,
    multi_pe_sip_local,
    row_per_cube,
    single_shard_per_rank,
)

__all__ = ["VALIDATORS", "TensorLike", "Validator", "multi_pe_sip_local", "row_per_cube", "single_shard_per_rank"]
