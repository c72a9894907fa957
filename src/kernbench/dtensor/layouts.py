"""How the part of a rank lies inside its SIP."""

from __future__ import annotations

from math import prod

from kernbench.policy.placement.dp import DPPolicy, PlacementError, resolve_dp_policy
from kernbench.policy.placement.views import ShardView
from kernbench.runtime_api.layout import TensorLayout
from kernbench.topology.spec import TopologySpec

# Below this a PE more costs more, in messages and commands, than it takes off the others.
BYTES_PER_PE = 2048


def local_policy(shape: tuple[int, ...], itemsize: int, wanted: DPPolicy | None, topology: TopologySpec) -> DPPolicy:
    """``wanted`` where a part of this shape can lie so, else rows over PEs."""
    if wanted is not None and _fits(shape, itemsize, wanted, topology):
        return wanted
    return rows_policy(shape, itemsize, wanted, topology)


def rows_policy(shape: tuple[int, ...], itemsize: int, within: DPPolicy | None, topology: TopologySpec) -> DPPolicy:
    """Rows over those of the cubes and PEs that ``within`` has, all of them without; of a single row its elements.

    As many PEs as there are rows, and ``BYTES_PER_PE`` for each; cubes first.
    """
    cubes, pes = topology.cubes_per_sip, topology.pes_per_cube
    if within is not None:
        cubes, pes = within.num_cubes or cubes, within.num_pes or pes
    alone = prod(shape[:-1]) == 1
    rows = prod(shape) if alone else shape[0]
    wanted = max(1, min(rows, prod(shape) * itemsize // BYTES_PER_PE))
    if wanted == 1:
        return DPPolicy(num_cubes=1, num_pes=1)
    how, num_cubes = "column_wise" if alone else "row_wise", min(cubes, wanted)
    return DPPolicy(how, how, num_cubes=num_cubes, num_pes=min(pes, wanted // num_cubes))


def is_row_major(layout: TensorLayout) -> bool:
    """Whether its virtual addresses are in the order of its elements."""
    return all(_is_in_order(layout, view) for view in layout.views)


def has_copies(layout: TensorLayout) -> bool:
    """Whether some element lies in several places."""
    return len({view.spec.offset_bytes for view in layout.views}) < len(layout.views)


def is_plain(layout: TensorLayout) -> bool:
    """Whether it lies as collectives on blocks want it: each element once, in order."""
    return is_row_major(layout) and not has_copies(layout)


def _is_in_order(layout: TensorLayout, view: ShardView) -> bool:
    """Whether a shard holds neighbours, where they come in the tensor: behind the first axis nothing is split."""
    axis = next((at for at, extent in enumerate(view.shape) if extent > 1), 0)
    first = 0
    for (start, _), extent in zip(view.window.bounds, layout.shape, strict=True):
        first = first * extent + start
    return (
        view.shape[axis + 1 :] == layout.shape[axis + 1 :] and first * layout.dtype.itemsize == view.spec.offset_bytes
    )


def _fits(shape: tuple[int, ...], itemsize: int, policy: DPPolicy, topology: TopologySpec) -> bool:
    sizes = {"num_pe": topology.pes_per_cube, "num_cubes": topology.cubes_per_sip}
    try:
        resolve_dp_policy(policy, shape=shape, itemsize=itemsize, target_sip=0, **sizes)
    except PlacementError:
        return False
    return True
