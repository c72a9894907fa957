"""Tensors against NumPy: every policy, any shape, every dtype, any index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine, small_machine
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from machines import POLICIES, copies_agree, numbered

from kernbench.common.data_policy import DataPolicy
from kernbench.common.dtypes import ALL, BF16, F16, F32, I8, I32, DType
from kernbench.common.errors import InputError
from kernbench.messages.requests import MemoryReadMsg, MemoryWriteMsg
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import HostTensor

MACHINE = small_machine()
# Two cubes of four PEs split an axis into eight parts at most.
SHAPES = st.lists(st.integers(8, 13), min_size=1, max_size=3).map(tuple)


def same(left: Any, right: Any) -> bool:
    left, right = np.asarray(left), np.asarray(right)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


@given(policy=POLICIES, shape=SHAPES, dtype=st.sampled_from(ALL))
def test_what_is_copied_comes_back(policy: DPPolicy, shape: tuple[int, ...], dtype: DType) -> None:
    engine, host = FakeEngine(MACHINE), numbered(shape, dtype)
    with RuntimeContext(engine) as torch:
        tensor = torch.empty(shape, dtype=dtype, dp=policy)
        assert tensor.copy_(host) is tensor
        assert same(tensor.numpy(), host)
        assert same(tensor, host)
        assert same(tensor.cpu().numpy(), host)
        assert tensor.tolist() == host.tolist()
        assert copies_agree(engine, tensor)
        other = torch.zeros(shape, dtype=F32, dp=DPPolicy("row_wise", "row_wise"))
        assert same(other.copy_(tensor).numpy(), host.astype(np.float32))


@given(data=st.data(), policy=POLICIES, shape=SHAPES, dtype=st.sampled_from((F16, BF16, I8)))
def test_any_index_reads_and_writes_as_numpys(
    data: st.DataObject, policy: DPPolicy, shape: tuple[int, ...], dtype: DType
) -> None:
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    engine, host = FakeEngine(MACHINE), numbered(shape, dtype)
    with RuntimeContext(engine) as torch:
        tensor = torch.tensor(host, dp=policy)
        assert tensor.dtype is dtype
        assert same(tensor[index].numpy(), host[index])
        value = np.full(host[index].shape, 21)
        tensor[index] = value
        host[index] = value
        assert same(tensor.numpy(), host)
        tensor[index] = 3
        host[index] = 3
        assert same(tensor.numpy(), host)
        assert copies_agree(engine, tensor)


def test_index_arrays_and_masks_work_too(torch):
    host = numbered((8, 9), F32)
    tensor = torch.tensor(host, dp=DPPolicy("row_wise", "column_wise"))
    assert same(tensor[[3, 1], [0, 8]].numpy(), host[[3, 1], [0, 8]])
    tensor[host > 5] = -1
    assert same(tensor.numpy(), np.where(host > 5, np.float32(-1), host))


def test_an_index_across_shards_reads_only_what_it_needs(torch, engine):
    tensor = torch.tensor(numbered((8, 16), F16), dp=DPPolicy("row_wise", "column_wise"))
    before = len(engine.messages)
    found = tensor[5, 2:10]
    assert isinstance(found, HostTensor)
    reads = engine.messages[before:]
    # Columns 2..4, 4..8 and 8..10 of row 1 of the shards of cube 1.
    assert [type(msg) for msg in reads] == [MemoryReadMsg] * 3
    assert [msg.nbytes for msg in reads] == [4, 8, 4]


def test_a_partial_write_sends_the_touched_bytes_to_every_copy(torch, engine):
    tensor = torch.zeros(8, 4, dtype="f16", dp=DPPolicy("replicate", "row_wise"))
    before = len(engine.messages)
    tensor[1:3, 1:3] = 7
    writes = engine.messages[before:]
    assert {type(msg) for msg in writes} == {MemoryWriteMsg}
    shards = [shard for shard in tensor.shards if shard.pe in {0, 1}]
    rows = {0: 1, 1: 0}
    wanted = {(shard.pa + rows[shard.pe] * 8 + 2, 4) for shard in shards}
    assert {(msg.pa, msg.nbytes) for msg in writes} == wanted
    assert len(writes) == len(wanted) == 4


def test_all_of_it_is_written_as_a_copy(torch, engine):
    tensor = torch.zeros(8, 4, dp=DPPolicy("replicate", "column_wise"))
    before = len(engine.messages)
    tensor[...] = 2.5
    assert [msg.nbytes for msg in engine.messages[before:]] == [32] * 8
    assert (tensor.numpy() == 2.5).all()


def test_nothing_is_sent_for_nothing(torch, engine):
    tensor = torch.zeros(4, 4)
    before = len(engine.messages)
    assert tensor[2:2].shape == (0, 4)
    tensor[2:2] = 1
    assert len(engine.messages) == before


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_constant_tensors(torch, dtype):
    policy = DPPolicy("column_wise", "row_wise")
    for tensor, value in (
        (torch.zeros(8, 8, dtype=dtype, dp=policy), 0),
        (torch.ones((8, 8), dtype=dtype, dp=policy), 1),
        (torch.full((8, 8), 3, dtype=dtype, dp=policy), 3),
        (torch.empty([8, 8], dtype=dtype, dp=policy).fill_(5), 5),
    ):
        assert same(tensor.numpy(), np.full((8, 8), value).astype(dtype.numpy))


def test_conversion_is_pytorchs(torch):
    half = torch.empty(4, dtype=torch.float16).copy_(np.array([1e6, -1e6, np.nan, 1 + 2**-11]))
    assert half.tolist()[:2] == [np.inf, -np.inf]
    assert np.isnan(half[2].item())
    assert half[3].item() == 1.0
    assert torch.empty(3, dtype="i8").copy_([1.9, -1.9, 100]).tolist() == [1, -1, 100]
    assert torch.empty(2, dtype="bf16").copy_(np.array([1, 2], np.int64)).tolist() == [1.0, 2.0]


def test_another_shape_is_refused(torch):
    tensor = torch.zeros(2, 3, name="w")
    for source in (np.zeros((3, 2)), np.zeros((1, 2, 3)), torch.zeros(6)):
        with pytest.raises(
            InputError,
            match=r"w\.copy_: the source has shape .*, which does not broadcast to the tensor's shape \(2, 3\)",
        ):
            tensor.copy_(source)
    with pytest.raises(ValueError, match="broadcast"):
        tensor[0] = np.zeros(4)
    with pytest.raises(IndexError):
        tensor[2]


@pytest.mark.parametrize("source", [np.zeros(2, complex), ["a", "b"], [None, 1], object()])
def test_what_holds_no_real_numbers_is_refused(torch, source):
    with pytest.raises(InputError, match="no array of real numbers"):
        torch.zeros(2).copy_(source)


def test_a_tensor_finds_its_type_in_its_data(torch):
    assert torch.tensor([1.5, 2]).dtype is F32
    assert torch.tensor([1, 2]).dtype is I32
    assert torch.tensor(np.float16(2)).dtype is F16
    assert torch.tensor([1, 2], dtype=torch.bfloat16).dtype is BF16
    assert torch.tensor(torch.ones(2, dtype="i8")).dtype is I8
    assert torch.tensor(torch.from_numpy(np.ones((2, 2)))).shape == (2, 2)


def test_small_things(torch):
    tensor = torch.tensor([[1.0, 2.0], [3.0, 4.0]], name="t")
    assert (len(tensor), tensor.ndim, tensor.numel(), tensor.nbytes) == (2, 2, 4, 16)
    assert [row.tolist() for row in tensor] == [[1, 2], [3, 4]]
    assert torch.tensor([[7]]).item() == 7
    with pytest.raises(ValueError, match="it has 4 elements"):
        tensor.item()
    with pytest.raises(TypeError):
        len(torch.tensor(1.0))
    assert repr(tensor) == "Tensor(t, shape=(2, 2), dtype=f32, sip0, 1 shard, mean=2.5, norm=5.47723)"
    np.testing.assert_array_equal(tensor, [[1, 2], [3, 4]])


def test_a_tensor_without_axes(torch):
    scalar = torch.tensor(2.5)
    assert (scalar.shape, scalar.item()) == ((), 2.5)
    scalar[...] = 4
    assert scalar[()].item() == 4


@pytest.mark.parametrize("shape", [(0,), (2, -1), (3, 0, 2)])
def test_a_tensor_of_nothing_is_refused(torch, shape):
    with pytest.raises(InputError, match="at least one element"):
        torch.empty(shape)


def test_a_shape_of_something_else_is_refused(torch):
    with pytest.raises(InputError, match="is no shape"):
        torch.empty(2.5)


def test_a_host_tensor_is_a_view():
    array = np.arange(6.0).reshape(2, 3)
    host = HostTensor(array)
    host[0, 0] = 9
    assert array[0, 0] == 9
    assert (host.shape, host.ndim, len(host), host.numel(), host.nbytes) == ((2, 3), 2, 2, 6, 48)
    assert host.dtype.name == "float64"
    assert host.to("f16").dtype is F16
    assert float(host[1, 2]) == 5
    assert same(1 + host, 1 + array)
    assert (host == array).all()
    assert np.sum(host) == array.sum()
    assert "bfloat16" in repr(host.to("bf16"))


def test_without_data_everything_costs_the_same_and_reads_zeros():
    def program(torch: RuntimeContext) -> np.ndarray[Any, Any]:
        tensor = torch.tensor(numbered((8, 8), F16), dp=DPPolicy("row_wise", "column_wise"))
        tensor[1:3, ::2] = 4
        tensor.fill_(2)
        return np.asarray(tensor[2, 1:7])

    engines = [FakeEngine(MACHINE, policy) for policy in (DataPolicy(), DataPolicy(keep=False, zeros=True))]
    contexts = [RuntimeContext(engine) for engine in engines]
    found = [program(torch) for torch in contexts]
    assert engines[0].now == engines[1].now
    assert [torch.has_data for torch in contexts] == [True, False]
    assert (found[0] == 2).all()
    assert (found[1] == 0).all()
    assert "mean" not in repr(contexts[1].zeros(2))
