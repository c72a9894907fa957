"""All-reduce over every PE by levels: PEs of a cube, cubes of a SIP, SIPs; and back in reverse.

Steps: the PEs of a cube pass their sums towards PE 0 from both sides of their ring, ceil((P-1)/2) rounds; PE 0 of the
cubes towards cube 0 likewise; the SIPs up a binary tree. The result goes back the same ways. Each PE's data are a
contribution of their own; ``avg`` divides by the number of PEs.

Rounding: sums are made once, on the way up: all PEs end with the same bits.
Time: (c+2) S/B + 2 (ceil((P-1)/2) + ceil((C-1)/2) + floor(log2 n)) alpha, c the children of the PE that has most: it
takes in its own data, theirs and the result by one link.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.messages import MESSAGE_KEYS, Messages
from kernbench.ccl.steps.ranks import own_shard
from kernbench.ccl.steps.trees import (
    Branch,
    Hops,
    all_reduce_in_place,
    hops_to_root,
    in_binary_tree,
    tree_args,
    widest_window,
)

config_keys = MESSAGE_KEYS


def kernel_args(
    *,
    n_elem: int,
    world_size: int,
    pes_per_cube: int = 1,
    cubes_per_sip: int = 1,
    num_sips: int | None = None,
    ranks_are_sips: bool = True,
    shards: tuple[int, ...] = (),
    **config: Any,
) -> tuple[Any, ...]:
    """``n_elem``: elements of each PE. Ranks are SIPs when there are ``num_sips`` of them and nobody says else.

    ``shards``: as for ``sip_allreduce``, one for each PE; one behind the other in the order of PEs when not given.
    """
    if ranks_are_sips and num_sips in (None, world_size):
        levels = pes_per_cube, cubes_per_sip, world_size
    else:
        cubes = -(-world_size // pes_per_cube)
        levels = min(world_size, pes_per_cube), min(cubes, cubes_per_sip), -(-cubes // cubes_per_sip)
    return n_elem, shards, *levels, *tree_args(**config)


def kernel(
    t_ptr: int,
    n_elem: int,
    shards: tuple[int, ...],
    pes: int,
    cubes: int,
    sips: int,
    n_slots: int,
    buffer_kind: str,
    dtype: str,
    op: str,
    chunk: int,
    *,
    tl: Any,
) -> None:
    """Reduce the ``n_elem`` elements of each PE of ``pes`` a cube, ``cubes`` a SIP and ``sips``, in place."""
    pe, cube, sip = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    hops = Hops(_hops(pe, pes), _hops(cube, cubes), hops_to_root(sip).sips)
    messages = Messages(dtype, op, chunk)
    window = widest_window(messages, 2 if sips > 1 else 1 if cubes > 1 else 0)
    branch = _branch((pe, pes), (cube, cubes), (sip, sips), window)
    at = own_shard(t_ptr, n_elem, dtype, tl, shards)
    lead = hops.lead(messages, min(n_slots, window), buffer_kind)
    all_reduce_in_place(at, n_elem, branch, lead, messages, pes * cubes * sips, tl)


def _branch(pe: tuple[int, int], cube: tuple[int, int], sip: tuple[int, int], window: int) -> Branch:
    """The queues of a PE, from its number and how many there are, at each level."""
    parent, children = _both_sides(*pe, "E", "W")
    if parent is None:
        parent, more = _both_sides(*cube, "S", "N")
        children += more
    if parent is None:
        over_sips = in_binary_tree(*sip)
        parent, children = over_sips.parent, children + over_sips.children
    return Branch(parent, children, window)


def _both_sides(at: int, n: int, forth: str, back: str) -> tuple[str | None, tuple[str, ...]]:
    """Parent and children of place ``at`` in a ring that is reduced to place 0 from both sides."""
    middle = n // 2  # ceil((n - 1) / 2): so many go back, the rest forth
    if at == 0:
        return None, (forth,) * (n > 1) + (back,) * (n > 2)
    if at <= middle:
        return back, (forth,) * (at < middle)
    return forth, (back,) * (at > middle + 1)


def _hops(at: int, n: int) -> int:
    """From place ``at`` in a ring that is reduced to place 0 from both sides."""
    return min(at, n - at) if at else 0
