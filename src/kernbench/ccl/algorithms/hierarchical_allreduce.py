"""All-reduce over every PE by levels (PEs of a cube, cubes of a SIP, SIPs), and back in reverse.

Steps: the P PEs of a cube pass their sums towards PE 0 from both sides of their ring in ceil((P-1)/2) rounds. In the
same way, PE 0 of each of the C cubes passes its sum towards cube 0. The SIPs pass theirs up a binary tree. The result
returns by the same paths. Each PE contributes its data; ``avg`` divides by the number of PEs.

Rounding: each sum is computed once, on the way up, so all PEs end with the same bits.
Time: (c+2) S/B + 2 (ceil((P-1)/2) + ceil((C-1)/2) + floor(log2 n)) alpha. c is the largest number of children of a PE:
its own data, the data of its c children and the result all enter the PE by one link.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.pieces import messages_of
from kernbench.ccl.trees import Branch, Hops, all_reduce, hops_to_root, in_binary_tree
from kernbench.messages.steps import Chunk, Step
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *,
    rank: int,
    world_size: int,
    n_elem: int,
    cube: int,
    pe: int,
    pes_per_cube: int = 1,
    cubes_per_sip: int = 1,
    num_sips: int | None = None,
    ranks_are_sips: bool = True,
    reduce_op: str = "sum",
    chunk_size: int | None = None,
    **config: Any,
) -> list[Step]:
    """Return the steps that reduce the ``n_elem`` elements of each PE.

    Ranks are SIPs if the world has ``num_sips`` ranks, unless ``ranks_are_sips`` is False.
    """
    messages = messages_of(reduce_op, chunk_size, **config)
    if ranks_are_sips and num_sips in (None, world_size):
        pes, cubes, sips, sip = pes_per_cube, cubes_per_sip, world_size, rank
    else:
        all_cubes = -(-world_size // pes_per_cube)
        pes, cubes = min(world_size, pes_per_cube), min(all_cubes, cubes_per_sip)
        sips, sip = -(-all_cubes // cubes_per_sip), rank // (pes * cubes)
    hops = Hops(_hops(pe, pes), _hops(cube, cubes), hops_to_root(sip).sips)
    branch = _branch((pe, pes), (cube, cubes), (sip, sips))
    return all_reduce(branch, hops.lead(messages), messages.pieces(Chunk(0, n_elem)), messages, pes * cubes * sips)


def _branch(pe: tuple[int, int], cube: tuple[int, int], sip: tuple[int, int]) -> Branch:
    """Return the queues of a PE at each level, from its number and the number of places at that level."""
    parent, children = _both_sides(*pe, "E", "W")
    if parent is None:
        parent, more = _both_sides(*cube, "S", "N")
        children += more
    if parent is None:
        over_sips = in_binary_tree(*sip)
        parent, children = over_sips.parent, children + over_sips.children
    return Branch(parent, children)


def _both_sides(at: int, n: int, forth: str, back: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the parent and the children of place ``at`` in a ring that is reduced to place 0 from both sides."""
    middle = n // 2  # ceil((n - 1) / 2) places send back, the others forth
    if at == 0:
        return None, (forth,) * (n > 1) + (back,) * (n > 2)
    if at <= middle:
        return back, (forth,) * (at < middle)
    return forth, (back,) * (at > middle + 1)


def _hops(at: int, n: int) -> int:
    """Return the hops from place ``at`` in a ring that is reduced to place 0 from both sides."""
    return min(at, n - at) if at else 0


kernel = ScheduledKernel(schedule)
kernel_args = kernel.kernel_args
