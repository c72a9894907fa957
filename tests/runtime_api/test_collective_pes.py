"""Collectives on PEs of their own: which PEs these are, and numbers of every collective and every part of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machines import RING, context_on, run_ranks, working_machine

from compiled import compiled
from kernbench.common.errors import ConfigError, InputError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.collective_pes import CollectivePes, collective_pes, pes_of_tensors_in_cube
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.frontends import frontend_settings
from kernbench.runtime_api.multiprocessing import SpawnException
from observed import findings, sanitized

pytestmark = pytest.mark.filterwarnings("ignore:all_reduce. the configured")

ROWS = DPPolicy(pe="row_wise", num_cubes=1)
OWN_CUBE = CollectivePes(name="cube 1", cubes=(1,), pes=(0, 1, 2, 3))
OWN_PES = CollectivePes(name="pes:2", cubes=(0,), pes=(2, 3))
SAME = CollectivePes(name="same", cubes=(0,), pes=(0, 1, 2, 3), are_owners=True)
PLACES = [OWN_CUBE, OWN_PES, SAME]
SIZE = 1500
"""Elements: more than a message of a PE, with a remainder"""


def settings(*overrides: str) -> Any:
    return frontend_settings(overrides).torch


@pytest.mark.parametrize(
    ("overrides", "name", "cubes", "pes"),
    [
        ((), "cube 1", (1,), range(4)),
        (("torch.comm=cube",), "cube 1", (1,), range(4)),
        (("torch.comm=same",), "same", (0,), range(4)),
        (("torch.comm=same", "torch.pes=3"), "same", (0,), range(3)),
        (("torch.cubes=2",), "same", (0, 1), range(4)),
        (("torch.comm=pes:1", "torch.cubes=2"), "pes:1", (0, 1), [3]),
        (("torch.comm=pes:3",), "pes:3", (0,), [1, 2, 3]),
        (("torch.comm=pes:2", "torch.pes=1"), "pes:2", (0,), [2, 3]),
    ],
)
def test_the_setting_selects_pes(overrides, name, cubes, pes):
    chosen = collective_pes(settings(*overrides), working_machine().topology_obj.spec)
    assert (str(chosen), chosen.cubes, chosen.pes) == (name, cubes, tuple(pes))


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (("torch.comm=cube", "torch.cubes=2"), r"torch.comm=cube: tensors lie on all 2 cubes .*torch.cubes=2.*pes:K"),
        (("torch.comm=pes:4",), r"torch.comm=pes:4: a cube has 4 PEs, .* at most 3"),
        (("torch.comm=pes:9",), r"torch.comm=pes:9: a cube has 4 PEs"),
        (
            ("torch.comm=pes:2", "torch.pes=3"),
            r"with torch.pes=3 this takes 5 PEs of a cube, which has 4; .* at most 2",
        ),
    ],
)
def test_settings_without_pes_are_refused_with_the_numbers(overrides, text):
    with pytest.raises(InputError, match=text):
        collective_pes(settings(*overrides), working_machine().spec)


def test_on_a_machine_of_one_cube_collectives_use_the_pes_of_tensors():
    spec = compiled("sip.cube_mesh.w=1", "sip.cube_mesh.h=1").spec
    assert collective_pes(settings(), spec).are_owners
    with pytest.raises(InputError, match="all 1 cubes"):
        collective_pes(settings("torch.comm=cube"), spec)


@pytest.mark.parametrize("value", ["pe:2", "pes:0", "pes", "Cube", ""])
def test_other_values_of_the_setting_are_refused(value):
    with pytest.raises(ConfigError, match="cube, same or pes:K"):
        settings(f"torch.comm={value!r}")


def test_tensors_have_the_other_pes():
    spec = working_machine().spec
    assert [pes_of_tensors_in_cube(settings(*chosen), spec) for chosen in ((), ("torch.comm=pes:3",))] == [4, 1]


def test_few_bytes_take_few_pes():
    assert OWN_CUBE.within(0) == ((1, 0),)
    assert OWN_CUBE.within(3 * 1024) == ((1, 0), (1, 1), (1, 2))
    assert CollectivePes(name="", cubes=(0, 1), pes=(2, 3)).within(1 << 20) == ((0, 2), (0, 3), (1, 2), (1, 3))


def numbers(rank: int, block: int = 0, size: int = SIZE) -> np.ndarray[Any, Any]:
    return ((np.arange(size) * 7 + 31 * rank + 5 * block) % 101 + 1).astype(np.float32)


class Program:
    """A rank whose operands are parts of larger tensors, which begin elsewhere on every rank."""

    def __init__(self, torch: Any, rank: int, pes: CollectivePes) -> None:
        self.torch, self.rank, self.dist = torch, rank, torch.distributed.on(pes)

    def part(self, values: np.ndarray[Any, Any]) -> Any:
        lead = 3 + self.rank
        data = np.concatenate([np.full(lead, -1, np.float32), values, np.full(5, -1, np.float32)])
        tensor = self.torch.tensor(data, dtype="f32", dp=ROWS)
        return self.dist.TensorPart(tensor, 4 * lead, len(values))

    def empty(self, size: int = SIZE) -> Any:
        return self.part(np.zeros(size, np.float32))

    def values(self, part: Any) -> np.ndarray[Any, Any]:
        """The elements of a part; nothing beside it may change."""
        held = part.tensor.numpy()
        lead = part.offset // 4
        assert (held[:lead] == -1).all()
        assert (held[lead + part.size :] == -1).all()
        return held[lead : lead + part.size]


def run(tmp_path, pes, program, sips=3):
    """Return the results of all ranks, and the (cube, PE) that ran a collective."""
    with context_on(working_machine(sips), tmp_path, RING) as torch:
        results = run_ranks(torch, lambda rank: program(Program(torch, rank, pes)))
        used = {pe[1:] for trace in torch.traces if trace.algorithm for pe in trace.pe_exec_ns}
    return results, used


REDUCED = {
    "sum": lambda rows: rows.sum(0),
    "avg": lambda rows: rows.mean(0, dtype=np.float32),
    "max": lambda rows: rows.max(0),
    "min": lambda rows: rows.min(0),
    "product": lambda rows: rows.prod(0),
}


@pytest.mark.parametrize("pes", PLACES, ids=str)
def test_collectives_in_place(tmp_path, pes):
    def program(own):
        dist, rank = own.dist, own.rank
        parts = [own.part(numbers(rank)) for _ in range(4)]
        dist.all_reduce(parts[0], "max")
        dist.broadcast(parts[1], src=1)
        dist.reduce(parts[2], dst=2, op="min")
        dist.barrier()
        several = [own.part(numbers(rank, block, size)) for block, size in enumerate((SIZE, 1, 700))]
        dist.all_reduce_coalesced(several)
        return [own.values(part) for part in (*parts[:3], *several)]

    results, used = run(tmp_path, pes, program)
    rows = np.stack([numbers(rank) for rank in range(3)])
    for rank, (reduced, sent, lowest, *several) in enumerate(results):
        np.testing.assert_array_equal(reduced, rows.max(0))
        np.testing.assert_array_equal(sent, rows[1])
        np.testing.assert_array_equal(lowest, rows.min(0) if rank == 2 else rows[rank])
        for block, size in enumerate((SIZE, 1, 700)):
            np.testing.assert_array_equal(several[block], sum(numbers(peer, block, size) for peer in range(3)))
    assert used == {(cube, pe) for cube, pe in pes.within(1 << 20)}


@pytest.mark.parametrize("op", list(REDUCED))
def test_reductions(tmp_path, op):
    def program(own):
        part = own.part(numbers(own.rank, size=50))
        own.dist.all_reduce(part, op)
        return own.values(part)

    results, _ = run(tmp_path, OWN_CUBE, program)
    expected = REDUCED[op](np.stack([numbers(rank, size=50) for rank in range(3)]))
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-6)


BITS = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


@pytest.mark.parametrize("op", list(BITS))
@pytest.mark.parametrize("dtype", ["i32", "i8"])
def test_reductions_of_bits(tmp_path, op, dtype):
    values = [np.arange(70, dtype=np.int32) * (rank + 3) % 120 for rank in range(2)]
    with context_on(working_machine(), tmp_path, RING) as torch:

        def program(rank):
            tensor = torch.tensor(values[rank], dtype=dtype, dp=ROWS)
            torch.distributed.all_reduce(tensor, op)
            return tensor.tolist()

        assert run_ranks(torch, program) == [BITS[op](*values).tolist()] * 2
        with pytest.raises(
            SpawnException, match="reduce_op 'bor' of f32: band, bor, bxor combine the bits of integers"
        ):
            run_ranks(torch, lambda rank: torch.distributed.all_reduce(torch.zeros(4), "bor"))


@pytest.mark.parametrize("pes", PLACES, ids=str)
def test_collectives_of_blocks(tmp_path, pes):
    def program(own):
        dist, rank = own.dist, own.rank
        make = lambda: [own.part(numbers(rank, block)) for block in range(3)]  # noqa: E731
        whole = lambda: own.part(np.concatenate([numbers(rank, block) for block in range(3)]))  # noqa: E731
        gathered, joined = [own.empty() for _ in range(3)], own.empty(3 * SIZE)
        dist.all_gather(gathered, own.part(numbers(rank)))
        dist.all_gather_into_tensor(joined, own.part(numbers(rank)))
        scattered, part = own.empty(), own.empty()
        dist.reduce_scatter(scattered, make())
        dist.reduce_scatter_tensor(part, whole())
        exchanged, single = [own.empty() for _ in range(3)], own.empty(3 * SIZE)
        dist.all_to_all(exchanged, make())
        dist.all_to_all_single(single, whole())
        return [
            [own.values(each) for each in gathered],
            own.values(joined).reshape(3, -1),
            own.values(scattered),
            own.values(part),
            [own.values(each) for each in exchanged],
            own.values(single).reshape(3, -1),
        ]

    results, _ = run(tmp_path, pes, program)
    all_ranks = [numbers(rank) for rank in range(3)]
    for rank, (gathered, joined, scattered, part, exchanged, single) in enumerate(results):
        total, come = sum(numbers(peer, rank) for peer in range(3)), [numbers(peer, rank) for peer in range(3)]
        for result, expected in ((gathered, all_ranks), (joined, all_ranks), (scattered, total), (part, total)):
            np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(exchanged, come)
        np.testing.assert_array_equal(single, come)


@pytest.mark.parametrize("pes", PLACES, ids=str)
def test_several_gathers_and_scatters_as_one_collective(tmp_path, pes):
    sizes = (SIZE, 2, 300)

    def program(own):
        dist, rank = own.dist, own.rank
        outs = [own.empty(3 * size) for size in sizes]
        dist.all_gather_into_tensor_coalesced(outs, [own.part(numbers(rank, i, n)) for i, n in enumerate(sizes)])
        parts = [own.empty(size) for size in sizes]
        dist.reduce_scatter_tensor_coalesced(parts, outs)
        return [own.values(out) for out in outs], [own.values(part) for part in parts]

    results, _ = run(tmp_path, pes, program)
    for rank, (outs, parts) in enumerate(results):
        for i, size in enumerate(sizes):
            np.testing.assert_array_equal(outs[i], np.concatenate([numbers(peer, i, size) for peer in range(3)]))
            np.testing.assert_array_equal(parts[i], 3 * numbers(rank, i, size))


@pytest.mark.parametrize("pes", PLACES, ids=str)
def test_messages_between_parts(tmp_path, pes):
    def program(own):
        dist, rank = own.dist, own.rank
        part, other = own.part(numbers(rank)), own.empty()
        ops = [dist.P2POp(dist.isend, part, (rank + 1) % 3), dist.P2POp(dist.irecv, other, (rank - 1) % 3)]
        for work in dist.batch_isend_irecv(ops[:: 1 if rank else -1]):
            work.wait()
        return own.values(other)

    for rank, result in enumerate(run(tmp_path, pes, program)[0]):
        np.testing.assert_array_equal(result, numbers((rank - 1) % 3))


@pytest.mark.parametrize("pes", PLACES, ids=str)
def test_a_group_of_one_rank(tmp_path, pes):
    def program(own):
        dist, rank = own.dist, own.rank
        alone, whole = {"group": dist.new_group([rank])}, own.part(numbers(rank))
        outs = [own.empty() for _ in range(8)]
        dist.all_reduce(whole, "avg", **alone)
        dist.broadcast(whole, rank, **alone)
        dist.reduce(whole, rank, **alone)
        dist.all_gather([outs[0]], whole, **alone)
        dist.all_gather_into_tensor(outs[1], whole, **alone)
        dist.reduce_scatter(outs[2], [whole], **alone)
        dist.reduce_scatter_tensor(outs[3], whole, **alone)
        dist.all_to_all([outs[4]], [whole], **alone)
        dist.all_to_all_single(outs[5], whole, [SIZE], [SIZE], **alone)
        dist.scatter(outs[6], [whole], rank, **alone)
        dist.gather(whole, [outs[7]], rank, **alone)
        dist.barrier(**alone)
        return [own.values(part) for part in (whole, *outs)]

    for rank, results in enumerate(run(tmp_path, pes, program, 2)[0]):
        for result in results:
            np.testing.assert_array_equal(result, numbers(rank))


def test_a_group_of_some_ranks(tmp_path):
    def program(own):
        group = own.dist.new_group([0, 2])
        part, exchanged = own.part(numbers(own.rank)), own.empty()
        if own.rank != 1:
            sizes = [500, SIZE - 500] if own.rank == 0 else [SIZE - 500, 500]
            own.dist.all_to_all_single(exchanged, part, sizes, sizes, group=group)
            own.dist.all_reduce(part, group=group)
        return own.values(part), own.values(exchanged)

    ((reduced, exchanged), (alone, _), _), _ = run(tmp_path, OWN_CUBE, program)
    np.testing.assert_array_equal(reduced, numbers(0) + numbers(2))
    np.testing.assert_array_equal(alone, numbers(1))
    np.testing.assert_array_equal(exchanged, np.concatenate([numbers(0)[:500], numbers(2)[: SIZE - 500]]))


@pytest.mark.parametrize("pes", [OWN_CUBE, SAME], ids=str)
def test_parts_of_another_type(tmp_path, pes):
    """The four bytes of an i32 are reduced as elements of their own."""

    def program(own):
        tensor = own.torch.tensor(np.full(8, 0x01020304, np.int32), dtype="i32", dp=ROWS)
        own.dist.all_reduce(own.dist.TensorPart(tensor, 4, 12, "i8"))
        return tensor.tolist()

    once, twice = 0x01020304, 0x02040608
    assert run(tmp_path, pes, program, 2)[0] == [[once, *[twice] * 3, *[once] * 4]] * 2


@pytest.mark.parametrize("pes", PLACES, ids=str)
def test_the_sanitizer_finds_nothing_beside_a_launch(tmp_path, pes):
    """A collective in flight, and launches on its tensor before and after it."""
    engine = sanitized(working_machine())
    (tmp_path / "ccl.yaml").write_text(f"algorithms:\n  chosen: {RING}\n")
    with RuntimeContext(engine, ccl=tmp_path / "ccl.yaml") as torch:

        def program(rank):
            own = Program(torch, rank, pes)
            part, gathered = own.part(numbers(rank)), own.empty(2 * SIZE)
            works = [own.dist.all_reduce(part, async_op=True)]
            works.append(own.dist.all_gather_into_tensor(gathered, part, async_op=True))
            doubled = part.tensor.clone()
            for work in works:
                work.wait()
            part.tensor.zero_()
            return own.values(own.dist.TensorPart(doubled, part.offset, part.size)), own.values(gathered)

        for reduced, gathered in run_ranks(torch, program):
            np.testing.assert_array_equal(reduced, numbers(0) + numbers(1))
            np.testing.assert_array_equal(gathered, np.tile(numbers(0) + numbers(1), 2))
    assert findings(engine) == ()


def test_mismatches_and_bad_parts_are_errors(tmp_path):
    def unequal(own):
        own.dist.all_reduce(own.empty(10 + own.rank))

    def outside(own):
        own.dist.TensorPart(own.torch.zeros(8), 4, 8)

    def between_elements(own):
        own.dist.TensorPart(own.torch.zeros(8), 2)

    def copies(own):
        own.dist.all_reduce(own.torch.zeros(8, dp=DPPolicy()))

    for program, text in {
        unequal: r"collective number 0 is not the same.*f32\[1[01]\].*f32\[1[01]\]",
        outside: "8 elements of f32 at byte 4; the tensor has 32 bytes",
        between_elements: "an element begins at a multiple of its 4 bytes",
        copies: "not stored in the order of its elements, each once",
    }.items():
        with pytest.raises(SpawnException, match=text):
            run(tmp_path, OWN_CUBE, program, 2)
