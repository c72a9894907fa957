"""PyTorch programs in a run that keeps no data: whole numbers of the host are known, and nothing else is made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from extras import need
from kernbench.common.data_policy import DataPolicy
from kernbench.common.errors import NoDataError
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import resolve_topology

need("triton")
need("torch")

import torch  # noqa: E402, I001

import kernbench.torch  # noqa: E402
import kernbench.triton  # noqa: E402, F401

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

MACHINE = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
AHBM = torch.device("ahbm")


@pytest.fixture(autouse=True)
def context() -> Iterator[RuntimeContext[Any]]:
    with RuntimeContext(engine=GraphEngine(MACHINE, enable_data=False)) as made:
        yield made


@triton.jit
def count_up(ids_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(ids_ptr + at) + 1)


@triton.jit
def count_by_atomics(out_ptr, N: tl.constexpr):
    tl.atomic_add(out_ptr + tl.arange(0, N) * 2, 1)


def ids(n: int = 8) -> Any:
    return torch.arange(n, dtype=torch.int32, device=AHBM)


def test_what_the_host_wrote_is_known() -> None:
    table = ids()
    assert table[3].item() == 3
    table[2:4] = torch.tensor([7, 9], dtype=torch.int32)
    assert table.tolist() == [0, 1, 7, 9, 4, 5, 6, 7]
    assert (table * 2 + 1)[3].item() == 19
    assert (table > 6).nonzero().flatten().tolist() == [2, 3, 7]
    assert table[table > 6].tolist() == [7, 9, 7]
    assert table.cpu().max().item() == 9
    assert bool(torch.tensor([True], device=AHBM))


def test_what_a_kernel_reads_stays_known_and_what_it_writes_does_not() -> None:
    table, out, other = ids(), ids(), ids()
    count_up[(1,)](table, out, 8)
    assert table.tolist() == list(range(8))
    assert other.tolist() == list(range(8))
    with pytest.raises(NoDataError, match="keeps no data"):
        out.tolist()
    out.zero_()
    assert out.tolist() == [0] * 8
    count_by_atomics[(1,)](out, 4)
    with pytest.raises(NoDataError):
        out[0].item()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        torch.nonzero,
        lambda x: torch.equal(x, x),
        lambda x: bool((x > 0).any()),
        lambda x: x.to(torch.int32)[0].item(),
        lambda x: ids()[:8].copy_(x.to(torch.int32)).tolist(),
        lambda x: torch.empty(8).copy_(x),
    ],
)
def test_a_value_that_is_not_known_is_refused(read: Callable[[Any], object]) -> None:
    with pytest.raises(NoDataError, match="this run keeps no data"):
        read(torch.randn(8, device=AHBM))


def test_operators_of_the_host_go_on_and_take_the_same_time() -> None:
    def program() -> None:
        x = torch.randn(4, 8, device=AHBM)
        y = (x @ x.T).softmax(dim=-1) + 1
        y[1:3, ::2] = 5.0
        x.index_select(0, ids(2)).copy_(y[:2, :1].expand(2, 8))

    ended = []
    for policy in (DataPolicy(), DataPolicy(keep=False), DataPolicy(keep=False, zeros=True)):
        with RuntimeContext(engine=GraphEngine(MACHINE, policy)) as made:
            program()
            ended.append(made.engine.now)
    assert len(set(ended)) == 1


def test_zeros_are_read_where_they_are_asked_for_but_what_is_known_is_not_zero() -> None:
    with RuntimeContext(engine=GraphEngine(MACHINE, DataPolicy(keep=False, zeros=True))) as made:
        assert torch.ones(8, device=AHBM).sum().item() == 0
        assert ids()[5].item() == 5
        assert made.engine.data_report().zeros_read == 1


def test_what_the_host_draws_after_the_machine_is_the_same() -> None:
    drawn = []
    for data in (True, False):
        with RuntimeContext(engine=GraphEngine(MACHINE, enable_data=data)):
            torch.manual_seed(4)
            torch.randn(3, 40, device=AHBM)
            drawn.append(torch.randint(0, 99, (5,)).tolist())
    assert drawn[0] == drawn[1]


def test_large_tensors_and_those_that_are_used_again_are_not_known() -> None:
    large = torch.zeros((1 << 18) + 1, dtype=torch.int32, device=AHBM)
    with pytest.raises(NoDataError):
        large[0].item()
    first = ids(16)
    where = first.data_ptr()
    del first
    again = torch.empty(16, dtype=torch.int32, device=AHBM)
    assert again.data_ptr() == where
    with pytest.raises(NoDataError):
        again.tolist()


def test_whole_numbers_that_the_host_draws_are_known() -> None:
    torch.manual_seed(4)
    expected = torch.randint(9, (3, 4))
    torch.manual_seed(4)
    drawn = torch.randint(9, (3, 4), device=AHBM)
    assert drawn.tolist() == expected.tolist()
    drawn[drawn > 4] = 0
    assert drawn.tolist() == expected.where(expected <= 4, 0).tolist()


def test_truncated_normal_numbers_are_drawn_once() -> None:
    x = torch.nn.init.trunc_normal_(torch.empty(64, device=AHBM), std=0.02)
    with pytest.raises(NoDataError):
        x.max().item()
