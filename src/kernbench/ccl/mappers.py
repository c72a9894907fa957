"""Public names of the mappers, which choose the PEs of a rank; the code is in ``layouts``."""

from kernbench.ccl.layouts import (
    MAPPERS,
    Mapper,
    RankPes,
    all_pes,
    leader_only,
    nth_pe,
    pe0_of_every_cube,
    rank_pes,
)

__all__ = ["MAPPERS", "Mapper", "RankPes", "all_pes", "leader_only", "nth_pe", "pe0_of_every_cube", "rank_pes"]
