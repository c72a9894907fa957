"""What PyTorch users reach for: comparing, reshaping, broadcasting copies, clones, random numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from fake_engine import FakeEngine, no_kernel, small_machine
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from machines import POLICIES, copies_agree, numbered

from compiled import compiled
from kernbench.common.data_policy import DataPolicy
from kernbench.common.dtypes import ALL, BF16, F16, F32, I8, I32
from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.errors import InputError, UnknownNameError
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import KernelLaunchMsg, MemoryReadMsg, MemoryWriteMsg
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.arrays import ShapeError
from kernbench.runtime_api.context import RuntimeContext

MACHINE = small_machine()
# Two cubes of four PEs split an axis into eight parts at most.
SHAPES = st.lists(st.integers(8, 12), min_size=1, max_size=2).map(tuple)


def shapes_of_size(size: int) -> list[tuple[int, ...]]:
    pairs = [(a, size // a) for a in range(1, size + 1) if size % a == 0]
    triples = [(a, b, c // b) for a, c in pairs for b in range(1, c + 1) if c % b == 0]
    return [(size,), *pairs, *triples]


def is_box(index: tuple[slice, ...], shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether ``array[index]`` of an array of ``shape`` is a box of the same elements under ``wanted``, in order."""
    numbers = np.arange(np.prod(shape))
    held = numbers.reshape(shape)[index].reshape(-1)
    box = tuple(slice(axis.min(), axis.max() + 1) for axis in np.unravel_index(held, wanted))
    return np.array_equal(numbers.reshape(wanted)[box].reshape(-1), held)


@given(data=st.data(), policy=POLICIES, shape=SHAPES)
def test_a_reshaped_tensor_is_numpys_and_the_same_memory(data, policy, shape):
    wanted = data.draw(st.sampled_from(shapes_of_size(int(np.prod(shape)))))
    host, engine = numbered(shape), FakeEngine(MACHINE)
    with RuntimeContext(engine) as torch:
        tensor = torch.tensor(host, dp=policy)
        if not all(is_box(view.index, shape, wanted) for view in tensor.layout.views):
            with pytest.raises(ShapeError, match="cannot be a view"):
                tensor.reshape(wanted)
            return
        sent, began = len(engine.messages), engine.now
        view = tensor.reshape(wanted)
        assert (len(engine.messages), engine.now) == (sent, began)
        assert view.shape == wanted
        assert view.shards == tensor.shards
        np.testing.assert_array_equal(view.numpy(), host.reshape(wanted))
        # Whoever makes a tensor like it gets one that lies in the same way.
        like = torch.full_like(view, 1, dtype="f16")
        assert like.shape == wanted
        assert [each.window for each in like.layout.views] == [each.window for each in view.layout.views]
        assert like.layout.owners == tensor.layout.owners
        view[...] = changed = host.reshape(wanted) + 1
        np.testing.assert_array_equal(tensor.numpy(), changed.reshape(shape))
        np.testing.assert_array_equal(view.reshape(shape).numpy(), changed.reshape(shape))
        assert copies_agree(engine, tensor)


ROWS, COLUMNS = DPPolicy("row_wise", "row_wise"), DPPolicy("column_wise", "column_wise")


@pytest.mark.parametrize(
    ("shape", "policy", "wanted", "described_by"),
    [
        ((8, 6), ROWS, (48,), ROWS),
        ((8, 6), ROWS, (16, 3), ROWS),
        ((8, 6), ROWS, (2, 4, 6), None),
        ((9, 4), ROWS, (-1,), None),
        ((48,), COLUMNS, (8, -1), ROWS),
        ((4, 16), COLUMNS, (2, 2, 16), COLUMNS),
        ((4, 16), COLUMNS, (4, 8, 2), None),
        ((9, 5), DPPolicy(), (5, 9), DPPolicy()),
        ((9, 5), None, (-1,), DPPolicy(num_pes=1, num_cubes=1)),
    ],
)
def test_a_view_where_the_shards_allow_it(machine, shape, policy, wanted, described_by):
    host = numbered(shape)
    with RuntimeContext(FakeEngine(machine, run_kernels=True)) as torch:
        tensor = torch.tensor(host, dp=policy)
        view = tensor.reshape(wanted)
        # One that no policy describes keeps what it was made with.
        assert view.dp == (described_by or tensor.dp)
        for each in (view, view.clone(), view.clone().reshape(shape).reshape(wanted)):
            np.testing.assert_array_equal(each.numpy(), host.reshape(view.shape))
        np.testing.assert_array_equal(view[0].numpy(), host.reshape(view.shape)[0])


@pytest.mark.parametrize(
    ("shape", "policy", "wanted"),
    [
        ((4, 16), COLUMNS, (64,)),
        ((4, 16), COLUMNS, (16, 4)),
        ((8, 6), ROWS, (6, 8)),
        ((9, 4), ROWS, (4, 9)),
        ((8, 6), DPPolicy("row_wise", "column_wise"), (48,)),
    ],
)
def test_no_view_where_elements_would_have_to_move(torch, shape, policy, wanted):
    tensor = torch.zeros(shape, dp=policy, name="x")
    words = r"x\.reshape\(.*\) cannot be a view: .* its shards are no boxes of .* Copy it: torch.empty"
    with pytest.raises(ShapeError, match=words):
        tensor.reshape(wanted)


@pytest.mark.parametrize("wanted", [(5,), (-1, 5), (-1, -1), (0, -1), (2, 3, 0), (-2, -3), ()])
def test_a_shape_of_another_size_is_refused(torch, wanted):
    with pytest.raises(ShapeError, match=r"x.reshape\(.*\): shape \(2, 3\) has 6 elements"):
        torch.zeros(2, 3, name="x").reshape(wanted)


def test_ways_to_write_a_shape(torch):
    tensor = torch.tensor(numbered((2, 6)))
    assert tensor.reshape(3, 4).shape == tensor.reshape((3, 4)).shape == tensor.reshape([3, -1]).shape == (3, 4)
    assert tensor.view(-1).shape == (12,)
    assert torch.tensor([7]).reshape(()).item() == torch.tensor(7).reshape(1, 1).item() == 7
    with pytest.raises(InputError, match="is no shape"):
        tensor.reshape("ab")


def test_a_view_waits_for_launches_and_goes_with_its_tensor(torch, engine):
    tensor = torch.zeros(4, 2)
    view = tensor.reshape(8)
    torch.launch("k", no_kernel, tensor, async_op=True)
    began = engine.now
    view.tolist()
    assert engine.now > began + 1000
    torch.launch("k", no_kernel, view, tensor)
    view.free()
    assert not tensor.is_live
    for use in (tensor.numpy, view.numpy, lambda: tensor.reshape(8), tensor.clone):
        with pytest.raises(InputError, match="has been freed"):
            use()
    # Its address may be another's by now.
    assert torch.zeros(4, 2).va == tensor.va
    assert not view.is_live


@given(data=st.data(), policy=POLICIES, shape=SHAPES, dtype=st.sampled_from((F16, I8)))
@settings(max_examples=15)
def test_a_source_that_broadcasts_is_copied(data, policy, shape, dtype):
    small = data.draw(st.integers(0, len(shape)).map(lambda at: shape[at:]))
    ones = data.draw(st.lists(st.booleans(), min_size=len(small), max_size=len(small)))
    source = numbered(tuple(1 if one else n for one, n in zip(ones, small, strict=True)), F32)
    engine = FakeEngine(MACHINE)
    with RuntimeContext(engine) as torch:
        tensor = torch.empty(shape, dtype=dtype, dp=policy)
        expected = np.broadcast_to(source, shape)
        for given_as in (source, torch.tensor(source), torch.from_numpy(source)):
            tensor.zero_()
            assert tensor.copy_(given_as) is tensor
            np.testing.assert_array_equal(tensor.numpy().astype(np.float32), expected)
        assert copies_agree(engine, tensor)


def test_a_number_is_copied_everywhere_and_nothing_shrinks(torch):
    assert torch.zeros(2, 2).copy_(3).tolist() == [[3, 3], [3, 3]]
    with pytest.raises(ShapeError):
        torch.zeros(2).copy_(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="broadcast"):
        torch.zeros(2, 3).copy_([1, 2])


@given(data=st.data(), policy=POLICIES, shape=SHAPES, dtype=st.sampled_from(ALL), other=st.sampled_from(ALL))
def test_equal_is_numpys(data, policy, shape, dtype, other):
    theirs_shape = data.draw(hnp.broadcastable_shapes(shape, min_side=1, max_dims=3, max_side=9))
    mine, theirs = numbered(shape, dtype), numbered(theirs_shape, other)
    expected = np.equal(mine.astype(np.float64), theirs.astype(np.float64))
    with RuntimeContext(FakeEngine(MACHINE)) as torch:
        tensor = torch.tensor(mine, dp=policy)
        for right in (theirs, torch.tensor(theirs), torch.from_numpy(theirs)):
            equal, unlike = tensor == right, tensor != right
            assert type(equal) is np.ndarray
            assert equal.dtype == np.bool_
            np.testing.assert_array_equal(equal, expected)
            np.testing.assert_array_equal(unlike, ~expected)
        np.testing.assert_array_equal(theirs.tolist() == tensor, expected)
        np.testing.assert_array_equal(tensor == 3, mine == 3)
        np.testing.assert_array_equal(tensor != 2.5, mine != 2.5)


def test_equal_reads_and_a_hash_does_not(torch, engine):
    tensor, other = torch.zeros(4), torch.ones(4)
    sent = len(engine.messages)
    assert len({tensor, other, tensor}) == 2
    assert hash(tensor) == hash(tensor)
    assert len(engine.messages) == sent
    assert not (tensor == other).any()
    assert [type(msg) for msg in engine.messages[sent:]] == [MemoryReadMsg] * 2
    assert torch.tensor(np.nan) != torch.tensor(np.nan)
    assert (torch.zeros(2, dtype="i8") == 300).tolist() == [False, False]
    with pytest.raises(ValueError, match=r"shapes \(4,\) and \(3,\) do not broadcast"):
        tensor == [1, 2, 3]  # noqa: B015
    with pytest.raises(ValueError, match="ambiguous"):
        [other].remove(tensor)


@pytest.mark.parametrize("dtype", [each for each in ALL if each.is_float], ids=str)
def test_a_number_is_equal_to_what_it_was_written_as(torch, dtype):
    """Also where a type has no such number."""
    tensor = torch.full((3,), 0.1, dtype=dtype)
    assert (tensor == 0.1).all()
    assert not (tensor != 0.1).any()
    assert not (tensor == 0.2).any()


@pytest.mark.parametrize("other", [None, "ones", object(), {}, 1j], ids=lambda other: type(other).__name__)
def test_what_holds_no_numbers_is_unlike_a_tensor(torch, other):
    tensor = torch.ones(2)
    assert (tensor == other) is False
    assert (tensor != other) is True


@pytest.mark.parametrize(
    "policy", [None, DPPolicy(), DPPolicy("row_wise", "column_wise"), DPPolicy("replicate", "row_wise")]
)
@pytest.mark.parametrize("dtype", [F16, I8])
def test_a_clone_lies_in_the_same_way(machine, policy, dtype):
    engine, host = FakeEngine(machine, run_kernels=True), numbered((8, 6), dtype)
    with RuntimeContext(engine) as torch:
        torch.ahbm.set_device(1)
        tensor = torch.tensor(host, dp=policy, name="x")
        torch.ahbm.set_device(0)
        sent = len(engine.messages)
        clone = tensor.clone()
        assert (clone.name, clone.sip, clone.dp, clone.dtype, clone.device) == (
            "x.clone",
            1,
            tensor.dp,
            dtype,
            "ahbm:1",
        )
        launches = [msg for msg in engine.messages[sent:] if isinstance(msg, KernelLaunchMsg)]
        assert [msg.targets for msg in launches] == [tensor.layout.owners]
        assert not any(isinstance(msg, MemoryReadMsg | MemoryWriteMsg) for msg in engine.messages[sent:])
        assert copies_agree(engine, clone)
        tensor.zero_()
        np.testing.assert_array_equal(clone.numpy(), host)
        assert not tensor.numpy().any()
        clone.free()
        assert tensor.is_live


def scale(x, y, n, dtype, *, tl):
    """Each PE twice what is its own."""
    at = tl.program_id(0) * n * tl.itemsize(dtype)
    tl.store(y + at, tl.cast(tl.load(x + at, n, dtype) + tl.full(n, 1, dtype), dtype))


def test_on_the_machine_a_clone_costs_time_and_no_bytes_of_the_host():
    topology = compiled("system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1")
    times = []
    for size in (64, 4096):
        with RuntimeContext(GraphEngine(topology)) as torch:
            host = numbered((8, size), F16)
            tensor = torch.tensor(host, dp=DPPolicy(pe="column_wise"))
            view = torch.tensor(host, dp=DPPolicy(pe="row_wise")).reshape(-1)
            clones = [tensor.clone(), view.clone(), tensor.clone().clone()]
            for clone, expected in zip(clones, (host, host.reshape(-1), host), strict=True):
                np.testing.assert_array_equal(clone.numpy(), expected)
            found = [each for each in torch.traces if each.name == "clone"]
            assert [each.phase for each in found] == ["launch"] * 4
            assert len(found[0].pe_exec_ns) == 8
            times.append(found[0].total_ns)
    assert times[1] > times[0] > 0


def test_types_of_numpy_and_python_are_types_everywhere():
    topology = compiled("system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1")
    types = {
        np.float32: F32,
        np.dtype("f2"): F16,
        ml_dtypes.bfloat16: BF16,
        np.int8: I8,
        np.int32: I32,
        float: F32,
        int: I32,
    }
    with RuntimeContext(GraphEngine(topology)) as torch:
        for given_type, kind in types.items():
            x = torch.tensor(range(16), dtype=given_type, dp=DPPolicy(pe="row_wise"))
            y = torch.empty_like(x, dtype=given_type)
            torch.launch("scale", scale, x, y, 2, given_type)
            torch.launch("scale", scale, y, x, n=2, dtype=given_type)
            assert x.dtype is y.dtype is kind
            np.testing.assert_array_equal(x.numpy().astype(int), np.arange(16) + 2)
        made = [torch.zeros(2, dtype=np.int8), torch.ones(2, dtype=np.int8), torch.full((2,), 3, dtype=np.int8)]
        assert {each.dtype for each in made} == {I8}
        assert x.cpu().to(np.float16).dtype is F16
        with pytest.raises(UnknownNameError, match="unknown dtype 'float64'; there are: f32"):
            torch.launch("scale", scale, x, y, 2, np.float64)


def every_call(x, y, z, half, *, tl):
    """Types of NumPy where the language takes one."""
    two = tl.full(4, 2, half) + tl.zeros(4, half) * tl.itemsize(half)
    wide = tl.cast(tl.load(x, 4, half) * two, np.float32) + tl.cast(tl.iota(4, np.int32), np.dtype("f4"))
    tl.store(y, wide)
    tl.composite("add", tl.ref(x, 4, half), 1.0, z, out_dtype=np.float32)


def test_kernels_take_them_too():
    topology = compiled("system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1")
    with RuntimeContext(GraphEngine(topology)) as torch:
        x, y, z = torch.arange(4, dtype=np.float16), torch.zeros(4, dtype=None), torch.zeros(4)
        torch.launch("k", every_call, x, y, z, np.float16)
        assert (y.tolist(), z.tolist()) == ([0, 3, 6, 9], [1, 2, 3, 4])


@pytest.mark.parametrize("given_type", [bool, None, np.float64, np.complex64, object], ids=str)
def test_what_is_no_type_of_the_machine_is_told(given_type):
    with pytest.raises(UnknownNameError, match=r"unknown dtype .*; there are: f32, f16, bf16, i32, i8"):
        dtype_of(given_type)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(300, "i8"), (-129, "i8"), (2**31, "i32"), (2.5, "i8"), (float("nan"), "i32"), (float("inf"), np.int8)],
)
def test_a_value_that_an_integer_type_cannot_hold_is_refused_as_in_kernels(torch, engine, value, dtype):
    tensor = torch.zeros(2, dtype=dtype)
    sent = len(engine.messages)
    for make in (
        lambda: torch.full((2,), value, dtype=dtype),
        lambda: torch.full_like(tensor, value),
        lambda: tensor.fill_(value),
        lambda: tensor.fill_(np.array(value)),
        lambda: tensor.__setitem__(0, value),
    ):
        with pytest.raises(InputError, match=r"is not a whole number|does not fit i\d+ \("):
            make()
    assert len(engine.messages) == sent
    assert tensor.tolist() == [0, 0]


def test_nothing_is_no_value(torch):
    for make in (lambda: torch.full((4,), None), lambda: torch.full_like(torch.ones(4), None)):
        with pytest.raises(InputError, match="fill value: None"):
            make()


def test_values_at_the_edge_and_of_floats(torch):
    assert torch.full((1,), 127, dtype="i8").item() == 127
    assert torch.full((1,), -128.0, dtype="i8").item() == -128
    assert torch.full((1,), 1e6, dtype="f16").item() == np.inf


def test_tensors_like_another(torch):
    torch.ahbm.set_device(1)
    x = torch.full((8, 4), 3, dtype="f16", dp=DPPolicy("row_wise", "row_wise"))
    torch.ahbm.set_device(0)
    made = {
        "zeros": (torch.zeros_like(x), 0),
        "ones": (torch.ones_like(x, name="y"), 1),
        "full": (torch.full_like(x, fill_value=7), 7),
        "copy": (torch.empty_like(x).copy_(5), 5),
    }
    for tensor, value in made.values():
        assert (tensor.shape, tensor.dtype, tensor.dp, tensor.sip) == (x.shape, F16, x.dp, 1)
        assert (tensor == value).all()
    assert made["ones"][0].name == "y"
    other = torch.zeros_like(x, dtype=np.int8, dp=DPPolicy())
    assert (other.dtype, other.dp) == (I8, DPPolicy())
    with pytest.raises(InputError, match="a ndarray is no tensor of the machine"):
        torch.zeros_like(np.zeros(3))


@pytest.mark.parametrize(
    "args", [(5,), (2, 9), (10, 0, -3), (0, 1, 0.25), (1.5,), (np.int64(4),), (3, 4, 100)], ids=str
)
def test_arange_is_numpys(torch, args):
    tensor, expected = torch.arange(*args, dp=DPPolicy()), np.arange(*args)
    assert tensor.dtype is (I32 if expected.dtype.kind == "i" else F32)
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_arange_in_another_type(torch):
    assert torch.arange(end=3, step=2, dtype="i8").tolist() == [0, 2]
    assert torch.arange(0, 3, dtype=torch.float16).tolist() == [0, 1, 2]
    for args, words in (
        ((300,), r"299 does not fit i8"),
        ((-200, 0), r"-200 does not fit i8"),
        ((0, 2, 0.5), "0.5 is not a whole number"),
        ((0, 5, 0), "a step that is not 0"),
        ((0, float("inf")), "finite numbers"),
        ((3, 1), "at least one element"),
        (("a",), "no array of real numbers"),
    ):
        with pytest.raises(InputError, match=words):
            torch.arange(*args, dtype="i8")


def test_random_numbers_follow_the_seed_and_nothing_else(fresh):
    def draw(seed=None, **options):
        with fresh() as torch:
            if seed is not None:
                torch.manual_seed(seed)
            return [torch.randn(8, 9, **options).numpy().astype(np.float32), torch.randn((4,)).numpy()]

    first, second = draw()
    assert first.std() == pytest.approx(1, abs=0.3)
    for again in (draw(), draw(dp=DPPolicy("row_wise", "column_wise"))):
        np.testing.assert_array_equal(again[0], first)
        np.testing.assert_array_equal(again[1], second)
    np.testing.assert_array_equal(draw(dtype=np.float16)[0], first.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(draw(-7)[0], draw(-7)[0])
    assert (draw(7)[0] != draw(8)[0]).any()
    assert (draw(7)[0] != first).any()


def test_a_seed_begins_anew(torch):
    torch.manual_seed(3)
    first = torch.randn(5).tolist()
    torch.manual_seed(np.int64(3))
    assert torch.randn_like(torch.zeros(5, dtype="f32")).tolist() == first
    assert torch.randn(5).tolist() != first
    for seed in (1.5, "x", True, None):
        with pytest.raises(InputError, match="a seed is a whole number"):
            torch.manual_seed(seed)
    for make in (lambda: torch.randn(2, dtype="i32"), lambda: torch.randn_like(torch.zeros(2, dtype="i8"))):
        with pytest.raises(InputError, match="use a float type"):
            make()


def test_each_rank_has_a_generator_of_its_own(fresh):
    def ranks(seeds, draws):
        with fresh() as torch:
            torch.manual_seed(11)
            found = {}

            def program(rank):
                if seeds[rank] is not None:
                    torch.manual_seed(seeds[rank])
                for _ in range(draws[rank]):
                    found[rank] = torch.randn(3).tolist()

            torch.multiprocessing.spawn(program, nprocs=2)
            return found[0], found[1], torch.randn(3).tolist()

    alike = ranks([None, None], [1, 1])
    assert alike[0] == alike[1] == alike[2]
    seeded = ranks([None, 5], [1, 3])
    assert seeded[0] == alike[0]
    assert seeded[2] == alike[2]
    assert seeded[1] == ranks([9, 5], [4, 3])[1] != alike[1]


def test_without_data_nothing_is_drawn_and_it_costs_the_same():
    engines = [FakeEngine(MACHINE, policy) for policy in (DataPolicy(), DataPolicy(keep=False, zeros=True))]
    for engine in engines:
        with RuntimeContext(engine) as torch:
            tensor = torch.randn(8, 8, dp=DPPolicy("row_wise"))
            torch.randn_like(tensor.clone().reshape(64)).zero_()
            assert (tensor == 0).all() != torch.has_data
            torch.arange(9)
    assert engines[0].now == engines[1].now


def test_small_things(torch):
    tensor, host = torch.zeros(2, 3), torch.from_numpy(np.zeros((2, 3)))
    assert (tensor.device, host.device) == ("ahbm:0", "cpu")
    for each in (tensor, host):
        assert (each.size(), each.size(1), each.size(-2), each.dim(), each.numel()) == ((2, 3), 3, 2, 2, 6)
    with pytest.raises(IndexError):
        tensor.size(2)
    clone = host.clone()
    clone[0] = 1
    assert host.reshape(3, -1).tolist() == [[0, 0]] * 3
