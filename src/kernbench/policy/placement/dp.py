"""The placement of a tensor on the cubes and PEs of a SIP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kernbench.common.values import value
from kernbench.policy.placement.geometry import PlacementError, Window, split_window, tiles

__all__ = [
    "SINGLE_PE",
    "DPPolicy",
    "LocalShard",
    "PlacementError",
    "ShardSpec",
    "column_wise",
    "place_windows",
    "replicate",
    "resolve_dp_policy",
    "row_wise",
    "tiled_column_major",
    "tiled_row_major",
]

_CUTS: dict[str, Callable[[Window, int], list[Window]]] = {
    "replicate": lambda window, parts: [window] * parts,
    "column_wise": lambda window, parts: split_window(window, -1, parts),
    "row_wise": lambda window, parts: split_window(window, 0, parts),
}


@value
class DPPolicy:
    """The placement policy of a tensor: the split over cubes, then over the PEs of each cube.

    A split is ``replicate``, ``column_wise`` (the last axis, K) or ``row_wise`` (the first axis, M). ``num_cubes`` and
    ``num_pes`` limit the placement to the first cubes and PEs; None uses all. Raises PlacementError for another name or
    a count below 1.
    """

    cube: str = "replicate"
    pe: str = "replicate"
    num_pes: int | None = None
    num_cubes: int | None = None

    def __post_init__(self) -> None:
        for axis, name in (("cube", self.cube), ("pe", self.pe)):
            if name not in _CUTS:
                raise PlacementError(f"{axis}={name!r} is no placement; there are: {', '.join(_CUTS)}")
        for axis, count in (("num_cubes", self.num_cubes), ("num_pes", self.num_pes)):
            if count is not None and count < 1:
                raise PlacementError(f"{axis}={count}: a tensor needs at least 1")


# The placement of a tensor without a policy.
SINGLE_PE = DPPolicy(num_pes=1, num_cubes=1)


@value
class ShardSpec:
    """A PE's part of a tensor: bytes ``offset_bytes .. offset_bytes + nbytes`` of the tensor's virtual range.

    Replicas of a part have the same offset.
    """

    sip: int
    cube: int
    pe: int
    offset_bytes: int
    nbytes: int


@value
class LocalShard:
    """A part of a tensor in a cube: its PE, its bytes, and the window of the tensor that it contains."""

    local_pe: int
    offset_bytes: int
    nbytes: int
    window: Window

    def on(self, sip: int, cube: int) -> ShardSpec:
        """Return the same shard in a cube of a machine."""
        return ShardSpec(sip, cube, self.local_pe, self.offset_bytes, self.nbytes)


def resolve_dp_policy(
    policy: DPPolicy, *, shape: tuple[int, ...], itemsize: int, num_pe: int, num_cubes: int = 1, target_sip: int
) -> list[ShardSpec]:
    """Return the shards of a tensor on a SIP of ``num_cubes`` cubes of ``num_pe`` PEs, by cube, then PE.

    A PE whose part is empty has no shard: an axis may have fewer elements than parts. ``itemsize`` is in bytes. Raises
    PlacementError if the policy needs more cubes or PEs than exist, or splits a tensor without axes.
    """
    placed = place_windows(
        policy, shape=shape, itemsize=itemsize, num_pe=num_pe, num_cubes=num_cubes, target_sip=target_sip
    )
    return [spec for spec, _ in placed]


def place_windows(
    policy: DPPolicy, *, shape: tuple[int, ...], itemsize: int, num_pe: int, num_cubes: int = 1, target_sip: int
) -> list[tuple[ShardSpec, Window]]:
    """Return the shards as ``resolve_dp_policy`` does, each with its window of the tensor; a shard is row-major."""
    cubes = _first_of("num_cubes", policy.num_cubes, num_cubes)
    pes = _first_of("num_pes", policy.num_pes, num_pe)
    placed = [
        (cube, pe, window)
        for cube, in_cube in enumerate(_CUTS[policy.cube](Window.whole(tuple(shape)), cubes))
        for pe, window in enumerate(_CUTS[policy.pe](in_cube, pes))
        if window.size
    ]
    offsets = _offsets((window for _, _, window in placed), itemsize)
    return [
        (ShardSpec(target_sip, cube, pe, offset, window.size * itemsize), window)
        for (cube, pe, window), offset in zip(placed, offsets, strict=True)
    ]


def _first_of(name: str, wanted: int | None, available: int) -> int:
    if wanted is not None and wanted > available:
        raise PlacementError(f"{name}={wanted}: there are {available}")
    return available if wanted is None else wanted


def _offsets(windows: Iterable[Window], itemsize: int) -> Iterator[int]:
    """Yield the offset of each window; distinct windows are stored in order of first appearance."""
    begins: dict[Window, int] = {}
    end = 0
    for window in windows:
        begin = begins.setdefault(window, end)
        if begin == end:
            end += window.size * itemsize
        yield begin


def column_wise(shape: tuple[int, ...], itemsize: int, num_pe: int) -> list[LocalShard]:
    """Return shards that split the last axis over the PEs; PEs without elements have no shard."""
    return _by_pe(_CUTS["column_wise"](Window.whole(tuple(shape)), num_pe), itemsize)


def row_wise(shape: tuple[int, ...], itemsize: int, num_pe: int) -> list[LocalShard]:
    """Return shards that split the first axis over the PEs; PEs without elements have no shard."""
    return _by_pe(_CUTS["row_wise"](Window.whole(tuple(shape)), num_pe), itemsize)


def replicate(shape: tuple[int, ...], itemsize: int, num_pe: int) -> list[LocalShard]:
    """Return shards that give each PE the complete tensor."""
    return _by_pe(_CUTS["replicate"](Window.whole(tuple(shape)), num_pe), itemsize)


def tiled_column_major(
    shape: tuple[int, ...], itemsize: int, num_pe: int, tile_m: int, tile_k: int
) -> list[LocalShard]:
    """Return one shard for each tile of a matrix, assigned round-robin to the PEs, down the columns."""
    return _deal(tiles(tuple(shape), tile_m, tile_k, column_major=True), itemsize, num_pe)


def tiled_row_major(shape: tuple[int, ...], itemsize: int, num_pe: int, tile_m: int, tile_k: int) -> list[LocalShard]:
    """Return one shard for each tile of a matrix, assigned round-robin to the PEs, along the rows."""
    return _deal(tiles(tuple(shape), tile_m, tile_k, column_major=False), itemsize, num_pe)


def _by_pe(windows: list[Window], itemsize: int) -> list[LocalShard]:
    return _deal(windows, itemsize, len(windows))


def _deal(windows: list[Window], itemsize: int, num_pe: int) -> list[LocalShard]:
    windows = [window for window in windows if window.size]  # empty windows come last
    offsets = _offsets(windows, itemsize)
    return [
        LocalShard(at % num_pe, offset, window.size * itemsize, window)
        for at, (window, offset) in enumerate(zip(windows, offsets, strict=True))
    ]
