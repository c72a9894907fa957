"""Tensors that go from placements to placements, whatever they are, on meshes of all ranks and of some: as in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meshes import on_some_ranks

from kernbench.dtensor import DeviceMesh, DTensor, Partial, Replicate, Shard
from kernbench.dtensor.placements import empty_place
from kernbench.policy.placement.dp import DPPolicy

MESHES: dict[str, tuple[int, Any]] = {
    "one of three": (3, [1]),
    "two": (2, [0, 1]),
    "three": (3, [0, 1, 2]),
    "some of six": (6, [1, 3, 4]),
    "a row": (2, [[0, 1]]),
    "a column": (3, [[0], [2]]),
    "a square": (4, [[0, 1], [2, 3]]),
    "a rectangle": (6, [[0, 1, 2], [3, 4, 5]]),
    "four of six": (6, [[0, 2], [3, 5]]),
}
POLICIES = (
    None,
    DPPolicy("column_wise", "row_wise", num_pes=2),
    DPPolicy("replicate", "row_wise"),
    DPPolicy(num_pes=2),
)
REDUCED = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min}
LENGTH = 4


@dataclass(frozen=True, slots=True)
class Chain:
    """A tensor that every rank contributes to from a ``seed``, and the placements that it has one behind the other."""

    world: int
    ranks: Any
    shape: tuple[int, ...]
    dtype: str
    op: str
    dp: DPPolicy | None
    placements: tuple[tuple[Any, ...], ...]
    seed: int

    @property
    def mesh(self) -> tuple[int, ...]:
        return np.array(self.ranks).shape

    def window(self, placements: tuple[Any, ...], place: tuple[int, ...]) -> tuple[slice, ...]:
        """What a place has, by the words of torch.chunk."""
        bounds = [(0, extent) for extent in self.shape]
        for each, ranks, at in zip(placements, self.mesh, place, strict=True):
            if isinstance(each, Shard):
                first, last = bounds[each.dim]
                step = -(-(last - first) // ranks)
                bounds[each.dim] = min(first + at * step, last), min(first + at * step + step, last)
        return tuple(slice(first, last) for first, last in bounds)

    def group(self, placements: tuple[Any, ...], place: tuple[int, ...]) -> tuple[Any, ...]:
        """Ranks of one group have contributions to the same elements."""
        return tuple(None if isinstance(each, Partial) else at for each, at in zip(placements, place, strict=True))

    def contribution(self, place: tuple[int, ...]) -> np.ndarray:
        """Small whole numbers, whose means are whole too; places that differ in copies and cuts only have the same."""
        first = self.placements[0]
        own = [at if isinstance(each, Partial) else 0 for each, at in zip(first, place, strict=True)]
        numbers = np.random.default_rng((self.seed, *own)).integers(-2, 3, self.shape)
        return numbers[self.window(first, place)] * (np.prod(self.mesh) if self.op == "avg" else 1)

    def whole(self, placements: tuple[Any, ...], locals_: list[np.ndarray]) -> np.ndarray:
        """The tensor, of what the ranks have; several copies have to be the same."""
        groups: dict[tuple[Any, ...], list[np.ndarray]] = {}
        places = list(product(*map(range, self.mesh)))
        for place, local in zip(places, locals_, strict=True):
            groups.setdefault(self.group(placements, place), []).append(local.astype(float))
        found = np.full(self.shape, np.nan)
        for place in places:
            window = self.window(placements, place)
            value = REDUCED[self.op](groups[self.group(placements, place)], axis=0)
            assert value.shape == found[window].shape
            assert np.all(np.isnan(found[window]) | (found[window] == value))
            found[window] = value
        return found


@st.composite
def chains(draw: Any) -> Chain:
    world, ranks = MESHES[draw(st.sampled_from(list(MESHES)))]
    mesh = np.array(ranks).shape
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    op = draw(st.sampled_from(list(REDUCED)))
    kinds = st.sampled_from([Replicate(), Partial(op), *map(Shard, range(len(shape)))])
    lists = st.tuples(*(kinds for _ in mesh)).filter(lambda each: empty_place(shape, each, mesh) is None)
    return Chain(
        world=world,
        ranks=ranks,
        shape=shape,
        dtype=draw(st.sampled_from(["f32", "f16", "bf16", "i32", "i8"])),
        op=op,
        dp=draw(st.sampled_from(POLICIES)),
        placements=tuple(draw(lists) for _ in range(LENGTH)),
        seed=draw(st.integers(0, 99)),
    )


def check(chain: Chain) -> None:
    """All on the way, and ``full_tensor`` at its end, are the tensor that it began as, and nothing is left of it."""

    def program(mesh: DeviceMesh) -> list[np.ndarray]:
        data = mesh.torch.tensor(chain.contribution(mesh.get_coordinate()), dtype=chain.dtype)
        x = DTensor.from_local(data, mesh, chain.placements[0], shape=chain.shape, dp=chain.dp)
        found, made = [x.to_local().peek()], [x.to_local()]
        for placements in chain.placements[1:]:
            x = x.redistribute(placements)
            assert (x.placements, x.shape, x.dtype.name) == (placements, chain.shape, chain.dtype)
            found.append(x.to_local().peek())
            made.append(x.to_local())
        made.append(x.full_tensor())
        found.append(made[-1].peek())
        for each in {id(each): each for each in made}.values():
            each.free()
        return found

    results, torch = on_some_ranks(chain.world, chain.ranks, program)
    assert torch.cleanup_report.freed == ()
    places = list(product(*map(range, chain.mesh)))
    wanted = chain.whole(chain.placements[0], [chain.contribution(place) for place in places])
    copies = (Replicate(),) * len(chain.mesh)
    for at, placements in enumerate((*chain.placements, copies)):
        np.testing.assert_array_equal(chain.whole(placements, [result[at] for result in results]), wanted)


few = settings(max_examples=8, derandomize=True, suppress_health_check=list(HealthCheck))
many = settings(few, max_examples=400, derandomize=False)


@few
@given(chains())
def test_some_chains_of_placements(chain: Chain) -> None:
    check(chain)


@pytest.mark.slow
@many
@given(chains())
def test_many_chains_of_placements(chain: Chain) -> None:
    check(chain)
