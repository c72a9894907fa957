"""PyTorch's tensors on device ahbm: what is where, what it costs, and what is refused."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest

from extras import need
from kernbench.common.errors import InputError, SecondThreadError
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import resolve_topology
from observed import findings, sanitized

need("torch")

import torch  # noqa: E402

import kernbench.torch  # noqa: E402
from frontends.torch_programs import machine  # noqa: E402

MACHINE = resolve_topology("default", ["system.sips.count=2", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
AHBM = torch.device("ahbm")


@pytest.fixture
def context() -> Iterator[RuntimeContext[Any]]:
    with RuntimeContext(engine=GraphEngine(MACHINE)) as made:
        yield made


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize(
    "dtype",
    ["float32", "float16", "bfloat16", "int32", "int64", "int16", "int8", "uint8", "uint32", "bool", "float8_e5m2"],
)
def test_elements_come_back_as_they_went(dtype: str) -> None:
    here = torch.arange(24).reshape(4, 6).to(getattr(torch, dtype))
    there = here.to(AHBM)
    assert isinstance(there, kernbench.torch.AhbmTensor)
    assert (there.device, there.dtype, there.shape) == (torch.device("ahbm:0"), here.dtype, here.shape)
    assert torch.equal(there.cpu().float(), here.float())
    assert there.tolist() == here.tolist()
    assert torch.equal(there.T[1:, ::2].cpu().float(), here.T[1:, ::2].float())
    assert there[2, 3].item() == here[2, 3].item()


@pytest.mark.usefixtures("context")
def test_views_share_a_storage() -> None:
    x = torch.zeros(4, 6, device=AHBM)
    x[1:3, ::2] = 5.0
    x.view(-1)[23] = 7.0
    x.transpose(0, 1)[5].copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    wanted = torch.zeros(4, 6)
    wanted[1:3, ::2] = 5.0
    wanted[:, 5] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert torch.equal(x.cpu(), wanted)
    assert x[2].data_ptr() == x.data_ptr() + 2 * 6 * x.element_size()
    assert (x.T.stride(), x.T.is_contiguous(), x[1].is_contiguous()) == ((1, 6), False, True)


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize(
    ("dtype", "seen"),
    [
        (torch.uint8, torch.float32),
        (torch.float8_e4m3fn, torch.bfloat16),
        (torch.int64, torch.int16),
        (torch.float32, torch.uint8),
        (torch.float32, torch.int32),
    ],
    ids=str,
)
def test_a_view_as_another_type_has_the_same_bits(dtype: torch.dtype, seen: torch.dtype) -> None:
    host = torch.randint(0, 100, (4, 16)).to(dtype)
    x = host.to(AHBM)

    def check() -> None:
        assert torch.equal(x.cpu().view(torch.uint8), host.view(torch.uint8))
        assert torch.equal(x.view(seen).cpu().view(torch.uint8), host.view(torch.uint8))

    check()
    for each in (x, host):
        each[1:3, 8:].view(seen).copy_(torch.zeros(host[1:3, 8:].view(seen).shape, dtype=seen))  # by the host
        each.view(seen)[3, :1].fill_(1)  # by a kernel
    check()
    assert repr(x.view(seen)) == f"{repr(host.view(seen))[:-1]}, device='ahbm:0')"


@pytest.mark.usefixtures("context")
def test_a_part_of_an_element_is_written_by_the_host() -> None:
    x = torch.zeros(2, dtype=torch.int32, device=AHBM)
    x.view(torch.uint8)[1:3].copy_(torch.tensor([1, 2], dtype=torch.uint8))
    assert x.tolist() == [0x20100, 0]


@pytest.mark.parametrize("data", [True, False])
def test_whole_numbers_are_known_through_a_view_of_another_width(data: bool) -> None:
    with RuntimeContext(engine=GraphEngine(MACHINE, enable_data=data)):
        x = torch.tensor([1, 2, 3, 4], dtype=torch.int32).to(AHBM)
        assert x.view(torch.int64).add(1).tolist() == [2 * 2**32 + 2, 4 * 2**32 + 4]
        assert x.view(torch.uint8)[4:6].tolist() == [2, 0]


@pytest.mark.usefixtures("context")
def test_random_numbers_are_those_of_the_host() -> None:
    makers = [torch.rand, torch.randn, lambda *size, **kw: torch.randint(0, 9, size, **kw)]
    for make in makers:
        torch.manual_seed(3)
        here = make(5, 7)
        torch.manual_seed(3)
        assert torch.equal(make(5, 7, device=AHBM).cpu(), here)


@pytest.mark.usefixtures("context")
def test_scalars_of_the_machine_make_a_tensor() -> None:
    x = torch.arange(4, device=AHBM)
    assert torch.tensor([x[3], 7, x[1] / 2]).tolist() == [3, 7, 0.5]
    assert torch.tensor([[x[2]], [x[1]]], dtype=torch.float16, device=AHBM).tolist() == [[2], [1]]
    assert torch.as_tensor((x[0] < 1, x[2] < 1)).tolist() == [True, False]


@pytest.mark.usefixtures("context")
def test_factories() -> None:
    assert torch.ones(3, device=AHBM).tolist() == [1, 1, 1]
    assert torch.full((2,), 2.5, device=AHBM, dtype=torch.float16).tolist() == [2.5, 2.5]
    assert torch.arange(2, 8, 3, device=AHBM).tolist() == [2, 5]
    assert torch.tensor([1.0, 2.0], device=AHBM).tolist() == [1, 2]
    like = torch.empty(2, 3, device=AHBM)
    assert torch.zeros_like(like).sum().item() == 0
    assert torch.empty_like(like).device == like.device
    assert torch.empty(0, 3, device=AHBM).cpu().shape == (0, 3)


def test_what_the_host_computes_costs_its_copies_and_is_listed(context: RuntimeContext[Any]) -> None:
    x = torch.ones(1000, device=AHBM)
    before = context.engine.now
    assert x.mode().values.item() == 1
    assert context.engine.now > before
    assert context.unmodelled == {"mode": 1}
    assert [(each.name, each.modelled) for each in context.operators.uses() if each.name == "mode"] == [("mode", False)]


def test_numbers_that_are_made_of_nothing_are_made_on_the_machine(context: RuntimeContext[Any]) -> None:
    x = torch.empty(6, 4, device=AHBM)
    makers = [x.zero_, x.normal_, lambda: x.fill_(2.0), lambda: torch.rand_like(x), lambda: x.bernoulli_(0.5)]
    for make in makers:
        make()
    assert not [each for each in context.traces if each.phase in ("h2d", "d2h")]
    assert not context.unmodelled
    x.bernoulli_(torch.ones(6, 4, device=AHBM))  # reads another tensor
    assert x.sum().item() == 24


def test_views_cost_nothing(context: RuntimeContext[Any]) -> None:
    x = torch.ones(6, 4, device=AHBM)
    before = context.engine.now
    x.T.reshape(2, 2, 6)[:, 1].unsqueeze(0).expand(3, 2, 6).detach()
    assert context.engine.now == before
    assert not context.unmodelled


def test_a_storage_that_is_dropped_is_used_again(context: RuntimeContext[Any]) -> None:
    x = torch.empty(100, device=AHBM)
    address, before = x.data_ptr(), context.engine.now
    del x
    assert torch.empty(100, device=AHBM).data_ptr() == address
    assert context.engine.now == before


@pytest.mark.usefixtures("context")
def test_autograd() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            assert ctx.saved_tensors[0].device == torch.device("ahbm:0")
            return dy * 2

    w = torch.ones(5, device=AHBM, requires_grad=True)
    Twice.apply(w * 3).sum().backward()
    assert w.grad.tolist() == [6] * 5


@pytest.mark.usefixtures("context")
def test_sips_are_devices() -> None:
    x = torch.ones(3, device="ahbm:1")
    assert x.device == torch.device("ahbm:1")
    assert (x + 1).device == x.device
    assert torch.ahbm.device_count() == 2
    assert torch.ahbm.current_device() == 0


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_types_that_the_machine_does_not_have(dtype: Any) -> None:
    with pytest.raises(InputError, match=f"{dtype} on ahbm: the machine has torch.float32, "):
        torch.ones(3, dtype=dtype).to(AHBM)


@pytest.mark.usefixtures("context")
def test_whole_numbers_are_as_wide_as_pytorch_s() -> None:
    assert torch.tensor([1, 2**40], device=AHBM).tolist() == [1, 2**40]
    assert torch.tensor([2**64 - 1], dtype=torch.uint64, device=AHBM).tolist() == [2**64 - 1]


@pytest.mark.usefixtures("context")
def test_a_refused_tensor_leaves_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError):
        torch.ones(3, device=AHBM).double()
    gc.collect()
    assert not capsys.readouterr().err


def test_outside_a_run() -> None:
    with pytest.raises(InputError, match="device ahbm: there is no machine"):
        torch.ones(3).to(AHBM)


@pytest.mark.usefixtures("context")
def test_other_threads_have_no_machine() -> None:
    """Not even in a context that was copied for them."""
    x = torch.ones(3, device=AHBM)
    (copied := copy_context()).run(x.sum)
    with ThreadPoolExecutor(1, "helper") as pool:
        for call in (lambda: x + 1, x.cpu, lambda: torch.ones(3).to(AHBM)):
            without, within = pool.submit(call).exception(), pool.submit(copied.run, call).exception()
            assert str(without).startswith("device ahbm: thread 'helper_0' has no machine")
            assert isinstance(within, SecondThreadError)
        assert pool.submit(torch.ones(3).sum).result() == 3
    assert (x + 1).tolist() == [2, 2, 2]


@pytest.mark.usefixtures("context")
def test_numbers_are_shown_without_simulated_time(context: RuntimeContext[Any]) -> None:
    x = torch.from_numpy(np.arange(3, dtype=np.float32)).to(AHBM)
    before = context.engine.now
    assert repr(x) == "tensor([0., 1., 2.], device='ahbm:0')"
    assert context.engine.now == before
    assert f"{x[1]:.2f}" == "1.00"


@pytest.mark.usefixtures("context")
def test_sums_of_narrow_types_are_rounded_once() -> None:
    torch.manual_seed(0)
    x = torch.randn(151, 64, dtype=torch.float16)
    w = torch.ones(64, dtype=torch.float16, device=AHBM, requires_grad=True)
    b = torch.zeros(64, dtype=torch.float16, device=AHBM, requires_grad=True)
    y = torch.nn.functional.layer_norm(x.to(AHBM), (64,), w, b)
    assert y.dtype == torch.float16
    y.backward(x.to(AHBM))
    # Half a unit of f16 is 2**-11 of a number; sums in f16 are several units away.
    assert torch.allclose(b.grad.cpu().double(), x.double().sum(0), rtol=2**-11, atol=1e-3)
    c = x.to(AHBM)
    c += 1.0
    assert (c.dtype, c[0, 0].item()) == (torch.float16, (x + 1.0)[0, 0].item())


def test_the_sanitizer_knows_what_the_program_reads() -> None:
    """Transfers bring whole stretches, results of operators are fetched too, and storages are used again."""
    engine = sanitized(MACHINE)
    with RuntimeContext(engine=engine):
        x = torch.empty(4, 4, device=AHBM)
        x[:, 0] = 1.0
        out = torch.empty(4, device=AHBM)
        torch.add(x[:, 0], 1, out=out)
        assert (out.tolist(), x[:, 0].tolist()) == ([2.0] * 4, [1.0] * 4)
        assert "ahbm" in repr(torch.empty(3, device=AHBM))
        assert findings(engine) == ()
        torch.empty(3, device=AHBM).cpu()
        torch.ones(3, device=AHBM)
        torch.empty(3, device=AHBM).tolist()
        torch.add(torch.empty(5, device=AHBM), 1)
    first = test_the_sanitizer_knows_what_the_program_reads.__code__.co_firstlineno
    assert [(each.line - first, each.nbytes) for each in findings(engine)] == [(11, 12), (13, 12), (14, 20)]


@pytest.mark.usefixtures("context")
def test_tensors_of_inference_mode_have_no_part_in_a_graph() -> None:
    """As PyTorch's: they and their views, but not views of what was there before, nor copies made afterwards."""
    before, x = torch.zeros(4, device=AHBM), torch.ones(4, device=AHBM, requires_grad=True)
    with torch.inference_mode():
        made, view = torch.ones(4, device=AHBM), before[1:]
        view.add_(made[1:])
    assert [each.is_inference() for each in (made, made[1:], made.exp(), view, before)] == [True, True, *[False] * 3]
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        x * made
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        made.add_(0)
    (x * made.clone() + before).sum().backward()
    assert x.grad.tolist() == [1.0] * 4


@pytest.mark.usefixtures("context")
def test_backward_runs_where_inference_mode_was_left() -> None:
    """PyTorch would take a thread of its own there, which has no machine."""
    with torch.inference_mode(), torch.inference_mode(False):
        x = torch.ones(2, device=AHBM, requires_grad=True)
        (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("size", [(2, 6, 3), (0,)])
def test_cat_writes_to_out(size: tuple[int, ...], dtype: torch.dtype) -> None:
    parts = [torch.arange(n * 6).reshape(2, n, 3) for n in (4, 2)]
    with machine() as context:
        operands, out = [x.to(AHBM) for x in parts], torch.zeros(size, dtype=dtype, device=AHBM)
        before = sum(trace.phase == "launch" for trace in context.traces)
        assert torch.cat(operands, 1, out=out) is out
        launches = sum(trace.phase == "launch" for trace in context.traces) - before
        assert launches == (1 if dtype is torch.int64 else 2)
        assert torch.equal(out.cpu(), torch.cat(parts, 1).to(dtype))
        wide = torch.zeros(2, 6, 3, dtype=torch.int64, device=AHBM)
        torch.cat([operands[0], wide[:, :2]], 1, out=wide)  # an operand shares memory with the result
        assert torch.equal(wide.cpu(), torch.cat([parts[0], torch.zeros(2, 2, 3, dtype=torch.int64)], 1))


def test_a_remark_names_a_cat_that_appends_few_elements() -> None:
    with machine() as context:
        cache, row = torch.zeros(1, 16, 4, device=AHBM), torch.zeros(1, 1, 4, device=AHBM)
        (cache + 1).sum()  # ends initialisation
        torch.cat([row, cache], 1)
        torch.cat([cache, cache], 1)
        assert not context.remarks
        for _ in range(2):
            longer = torch.cat([cache, row], 1)
            cache.add_(1)  # the result is a copy
            assert not longer.any()
            cache.zero_()
        assert len(context.remarks) == 1
        assert "torch.cat copies" in context.remarks[0]
