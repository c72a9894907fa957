"""All-reduce by reduce-scatter and all-gather round the ring: the bandwidth-optimal one.

Steps: 2(n-1) of a n-th of the data each. In the first n-1 every rank adds its part to what comes and passes it on, and
ends with one part reduced; in the others the reduced parts go round. The steps follow each other piece by piece.

Rounding: a part is reduced on one rank and copied, so all ranks end with the same bits.
Time: 2(n-1)/n S/B + 2(n-1) alpha.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.messages import MESSAGE_KEYS, Messages, message_args
from kernbench.ccl.steps.ranks import own_shard, rank_of
from kernbench.ccl.steps.rings import RingPlace, all_reduce_in_place

config_keys = MESSAGE_KEYS


def kernel_args(*, n_elem: int, world_size: int, **config: Any) -> tuple[int | str, ...]:
    """Nothing beyond what messages take."""
    return n_elem, world_size, *message_args(**config)


def kernel(t_ptr: int, n_elem: int, world_size: int, dtype: str, op: str, chunk: int, *, tl: Any) -> None:
    """Reduce the ``n_elem`` elements of each rank, in place."""
    ring = RingPlace("E", "W", rank_of(tl), world_size)
    all_reduce_in_place(own_shard(t_ptr, n_elem, dtype, tl), n_elem, ring, Messages(dtype, op, chunk), tl)
