"""PyTorch models as they are: numbers of a step of training and of generation, and what they cost."""

from __future__ import annotations

import copy
import gc
import io
import tracemalloc
from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import rnn  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import (  # noqa: E402
    AHBM,
    AHEAD,
    EXAMPLES,
    ONE_CUBE,
    check_step,
    machine,
    train_step,
)
from kernbench.common.errors import InputError, UnmodelledError  # noqa: E402
from kernbench.common.imports import import_file  # noqa: E402
from kernbench.engine.engine import GraphEngine  # noqa: E402
from kernbench.frontends.torch.storage import UnknownTypeError  # noqa: E402
from kernbench.runtime_api.bench_registry import load_script  # noqa: E402
from kernbench.runtime_api.bench_runner import run_bench  # noqa: E402
from kernbench.runtime_api.frontends import frontend_settings  # noqa: E402

MODELS = import_file(EXAMPLES / "models.py", "the example models")


def ids(*shape: int) -> Any:
    return torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(3))


def next_token_loss(given: Any) -> Any:
    def loss_of(logits: Any) -> Any:
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), given[:, 1:].flatten().to(logits.device))

    return loss_of


class Blocks(nn.Module):
    """A list of four heads, of which three are called."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(4))

    def forward(self, x: Any) -> Any:
        for head in self.heads[:3]:
            x = head(x)
        return x


class Head(nn.Module):
    """A member of a list, with a list inside."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.ReLU(), nn.Tanh()])

    def forward(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x


def test_calls_of_the_outermost_list_of_modules_are_counted() -> None:
    with machine(data=False) as context:
        Blocks().to(AHBM)(torch.zeros(8, device=AHBM))
        members = context.operators.members
        assert members is not None
        assert (members.name, members.members, members.calls) == ("heads", 4, 3)
        Head().to(AHBM)(torch.zeros(8, device=AHBM))
        members = context.operators.members
        assert members is not None
        assert (members.name, members.members, members.calls) == ("parts", 2, 2)


def test_an_encoder_layer() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation="gelu", batch_first=True)
    with machine(AHEAD) as context:
        check_step(context, layer, torch.randn(2, 9, 32), lambda y: y.sin().sum())


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"fused": True}], ids=["lists", "singly", "fused"])
def test_a_gpt_with_its_head_tied_to_its_table(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    given = ids(2, 9)
    with machine(AHEAD) as context:
        check_step(context, MODELS.Gpt(50, 32, 1, 2, 16), given, next_token_loss(given), **options)


@pytest.mark.parametrize("experts", [0, 3])
def test_a_decoder_of_llamas_kind(experts: int) -> None:
    torch.manual_seed(0)
    given = ids(2, 7)
    with machine(AHEAD) as context:
        check_step(context, MODELS.Llama(50, 32, 1, 4, 2, experts), given, next_token_loss(given))


def test_a_vision_transformer() -> None:
    torch.manual_seed(0)
    with machine(AHEAD) as context:
        check_step(context, MODELS.Vit(16, 8, 32, 1), torch.randn(2, 3, 16, 16), lambda y: y.logsumexp(-1).sum())


def test_a_net_of_convolutions() -> None:
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, stride=2, groups=2)]
    net = nn.Sequential(*parts, nn.GroupNorm(2, 6), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(6, 3))
    with machine(AHEAD) as context:
        check_step(context, net, torch.randn(2, 3, 12, 12), lambda y: y.pow(2).sum())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_take_a_launch_a_cell(kind: Any) -> None:
    torch.manual_seed(0)
    layer = kind(5, 6, batch_first=True)
    with machine(AHEAD) as context:
        check_step(context, Pick(layer), torch.randn(2, 2, 5), lambda y: y.pow(2).sum())
        cells = [each for each in context.operators.uses() if each.name.endswith("_cell")]
        assert [(each.calls, each.launches) for each in cells] == [(2, 2)]


class Pick(nn.Module):
    """The first result of a module."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Any) -> Any:
        return self.module(x)[0]


@pytest.mark.parametrize("fused", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradients_are_scaled_and_steps_without_sense_left_out(fused: bool) -> None:
    torch.manual_seed(0)
    on_host = nn.Linear(8, 4)
    with machine(AHEAD) as context:
        there = copy.deepcopy(on_host).to(AHBM)
        for device, model, options in ((AHBM, there, {"fused": fused}), (torch.device("cpu"), on_host, {})):
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
            scaler = torch.amp.GradScaler(device.type, init_scale=2.0**16, growth_interval=2)
            for factor in (1.0, float("inf"), 1.0, 1.0):
                loss = model(torch.linspace(0, 1, 16).reshape(2, 8).to(device)).pow(2).mean() * factor
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            assert scaler.get_scale() == 2.0**16
        torch.testing.assert_close(there.weight.detach().cpu(), on_host.weight.detach(), atol=1e-5, rtol=1e-5)
        assert not context.unmodelled


class PackedTagger(nn.Module):
    """A recurrent layer over sequences of 2, 1 and 2 steps."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        packed = rnn.pack_padded_sequence(x, torch.tensor([2, 1, 2]), batch_first=True, enforce_sorted=False)
        found, state = self.layer(packed)
        last = state[0] if isinstance(state, tuple) else state
        return rnn.pad_packed_sequence(found, batch_first=True)[0].sum((0, 1)) + last.sum()


@pytest.mark.parametrize("layer", [nn.LSTM(5, 6), nn.GRU(5, 6)], ids=["LSTM", "GRU"])
def test_recurrent_layers_take_packed_sequences(layer: Any) -> None:
    with machine(AHEAD) as context:
        check_step(context, PackedTagger(layer), torch.randn(3, 2, 5), lambda y: y.pow(2).sum())


def test_packing_asks_for_lengths_on_the_host() -> None:
    with (
        machine(AHEAD),
        pytest.raises(InputError, match=r"py:\d+: pack_padded_sequence: lengths are on ahbm:0, must be on"),
    ):
        rnn.pack_padded_sequence(torch.zeros(4, 2, 3, device=AHBM), torch.tensor([4, 2], device=AHBM))


def lazy_net(device: Any = None) -> Any:
    norm = nn.LazyBatchNorm1d(device=device)
    return nn.Sequential(nn.LazyConv1d(4, 3, device=device), norm, nn.Flatten(), nn.LazyLinear(2, device=device))


@pytest.mark.parametrize(
    "make",
    [lambda: lazy_net().to(AHBM), lambda: lazy_net(AHBM), lambda: copy.deepcopy(lazy_net().half().to(AHBM)).float()],
    ids=["moved", "made there", "copied and cast"],
)
def test_lazy_modules_have_their_form_from_the_first_forward(make: Any) -> None:
    torch.manual_seed(0)
    on_host, x = lazy_net(), torch.randn(2, 3, 5)
    with machine(AHEAD) as context:
        there = make()
        assert {str(each.device) for each in there.parameters()} == {"ahbm:0"}
        there(x.to(AHBM))
        assert isinstance(there[3], nn.Linear)
        assert not isinstance(there[3], nn.LazyLinear)
        on_host(x)
        there.load_state_dict(on_host.state_dict())
        check_there(context, there, on_host, x)


def check_there(context: Any, there: Any, on_host: Any, x: Any) -> None:
    """Results and gradients of a module on the machine are those of its twin on the host."""
    found, wanted = there(x.to(AHBM)), on_host(x)
    torch.testing.assert_close(found.detach().cpu(), wanted.detach(), atol=1e-5, rtol=1e-4)
    found.pow(2).sum().backward()
    wanted.pow(2).sum().backward()
    for mine, theirs in zip(there.parameters(), on_host.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, atol=1e-4, rtol=1e-4)
    assert not context.unmodelled


def test_lazy_modules_take_the_state_of_one_that_has_its_form() -> None:
    on_host, x = nn.Linear(3, 2), torch.randn(4, 3)
    with machine(AHEAD) as context:
        there = nn.LazyLinear(2).to(AHBM)
        there.load_state_dict(on_host.state_dict())
        check_there(context, there, on_host, x)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_are_generated_as_on_the_host(temperature: float) -> None:
    torch.manual_seed(0)
    model = MODELS.Llama(50, 32, 1)
    torch.manual_seed(5)
    wanted = model.generate(ids(2, 4), 4, temperature)
    with machine(AHEAD) as context:
        torch.manual_seed(5)
        assert torch.equal(model.to(AHBM).generate(ids(2, 4).to(AHBM), 4, temperature).cpu(), wanted)
        assert not context.unmodelled


def test_time_depends_on_neither_data_nor_the_garbage_collector() -> None:
    def ended(data: bool, collect: bool) -> float:
        with machine(data=data) as context:
            model = nn.Sequential(nn.Embedding(50, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()).to(AHBM)
            for _ in range(2):
                ring: list[Any] = [torch.ones(64, device=AHBM)]
                ring.append(ring)
                train_step(model, ids(2, 6).to(AHBM), lambda y: y.pow(2).mean())
                if collect:
                    del ring
                    gc.collect()
            return context.engine.now

    first = ended(data=True, collect=False)
    assert ended(data=False, collect=False) == first
    assert ended(data=True, collect=True) == first


def test_large_tensors_take_no_memory_of_the_host_without_data() -> None:
    with machine(data=False):
        tracemalloc.start()
        x = torch.zeros(1 << 12, 1 << 13, dtype=torch.float16, device=AHBM)
        assert (x[:2, :4] + torch.randn(2, 4, device=AHBM)).shape == (2, 4)
        assert torch.ahbm.memory_allocated() >= 64 << 20
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()


def test_memory_is_counted_in_the_blocks_of_pytorchs_allocators() -> None:
    with machine(AHEAD):
        before = torch.ahbm.memory_allocated()
        x = torch.empty(1000, 1000, device=AHBM)
        small = [torch.empty(3, device=AHBM) for _ in range(4)]
        assert torch.ahbm.memory_allocated() - before == 4_000_256 + 4 * 512
        del x
        assert torch.ahbm.memory_allocated() - before == 4 * 512
        assert torch.ahbm.max_memory_allocated() == 4_000_256 + 4 * 512
        torch.ahbm.reset_peak_memory_stats()
        assert torch.ahbm.max_memory_allocated() == 4 * 512
        del small


def test_dropped_memory_is_freed_when_there_is_no_room_for_another_size() -> None:
    with machine(data=False):
        for more in range(30):
            torch.empty((1 << 31) + more * 4096, dtype=torch.float16, device=AHBM)


@pytest.mark.parametrize("setting", ["torch.cubes=2", "torch.pes=9"])
def test_more_pes_than_there_are_is_an_error(setting: str) -> None:
    with machine(setting), pytest.raises(InputError, match=f"--set {setting}: this machine has"):
        torch.empty(3, device=AHBM)


def test_a_full_device_names_its_largest_tensors() -> None:
    with machine(data=False) as context:
        fit = context.topology.hbm_bytes_per_sip >> 32
        full = r"4 GiB asked for.*The largest: 4 GiB \(2,147,483,648 of f16"
        with pytest.raises(torch.OutOfMemoryError, match=full):
            [torch.empty(1 << 31, dtype=torch.float16, device=AHBM) for _ in range(fit + 1)]


def test_launches_are_named_after_modules_and_lines() -> None:
    with machine(AHEAD) as context:
        net = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.GELU())).to(AHBM)
        net(torch.ones(2, 8, device=AHBM)).sum().backward()
        context.drain()
        names = [each.name for each in context.traces if each.phase == "launch"]
    file = "test_torch_models.py"
    assert [name.rpartition(" ")[0] for name in names if name.startswith(("0 addmm", "1.0 gelu"))] == [
        "0 addmm",
        "1.0 gelu",
        "1.0 gelu_backward",
    ]
    assert all(f" {file}:" in name for name in names)


def test_operators_add_up_to_the_time_of_the_program() -> None:
    with machine(AHEAD) as context:
        x = torch.ones(64, 64, device=AHBM)
        context.drain()
        began = context.engine.now
        y = (x @ x).softmax(-1)
        context.drain()
        took = context.engine.now - began
        uses = {each.name: each for each in context.operators.uses()}
    assert y.shape == (64, 64)
    assert uses["mm"].launches == uses["_softmax"].launches == 1
    assert uses["mm"].ns + uses["_softmax"].ns == pytest.approx(took, abs=1e-3)


def test_strict_refuses_what_the_host_would_compute() -> None:
    with machine("torch.strict=true"):
        x = torch.ones(8, device=AHBM)
        with pytest.raises(UnmodelledError, match=r"test_torch_models.py:\d+: operator mode has no kernel"):
            x.mode()


def test_a_traced_model_is_not_checked_and_says_so() -> None:
    with machine(AHEAD) as context:
        model, x = nn.Linear(4, 4).to(AHBM), torch.ones(2, 4, device=AHBM)
        assert torch.equal(torch.jit.trace(model, x)(x), model(x))
        assert len(context.remarks) == 1
        torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4))
    assert context.remarks[0].startswith("torch.jit.trace: the trace is not checked")


def test_a_type_that_backward_asks_for_and_the_machine_lacks_is_refused() -> None:
    class Widen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad.to(torch.float64)

    with machine(AHEAD):
        x = torch.ones(3, device=AHBM, requires_grad=True)
        with pytest.raises(UnknownTypeError, match="float64 on ahbm"):
            Widen.apply(x).sum().backward()


def test_autocast_multiplies_in_the_narrow_type_and_sums_in_f32() -> None:
    with machine(AHEAD):
        layer, x = nn.Linear(8, 4).to(AHBM), torch.ones(2, 8, device=AHBM)
        with torch.autocast("ahbm", dtype=torch.bfloat16):
            y = layer(x)
            total = functional.mse_loss(y, torch.zeros_like(y))
        assert (y.dtype, total.dtype) == (torch.bfloat16, torch.float32)
        total.backward()
        assert layer.weight.grad.dtype is torch.float32


def test_models_are_saved_and_loaded_here_and_there() -> None:
    with machine(AHEAD):
        there = nn.Linear(4, 4).to(AHBM)
        file = io.BytesIO()
        torch.save(there.state_dict(), file)
        file.seek(0)
        again = torch.load(file)
        file.seek(0)
        on_host = torch.load(file, map_location="cpu")
        assert again["weight"].device.type == "ahbm"
        assert torch.equal(on_host["weight"], there.weight.detach().cpu())
        fresh = nn.Linear(4, 4)
        fresh.load_state_dict(again)
        assert torch.equal(fresh.weight, on_host["weight"])


def test_parameters_stay_what_they_are_when_a_module_moves() -> None:
    with machine(AHEAD):
        model = MODELS.Gpt(10, 8, 1, 2, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model.to(AHBM)
        assert model.head.weight is model.tokens.weight
        model(ids(1, 3).remainder(10).to(AHBM)).sum().backward()
        before = model.norm.bias.detach().cpu()
        optimizer.step()
        assert not torch.equal(model.norm.bias.detach().cpu(), before)


def test_a_module_moves_while_a_result_of_it_is_there() -> None:
    layer = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    with machine(AHEAD):
        expected, weight = layer(x), layer[1].weight
        torch.testing.assert_close(layer.to(AHBM)(x.to(AHBM)).cpu(), expected, atol=1e-5, rtol=1e-5)
        assert layer[1].weight is weight
        with pytest.raises(InputError, match=r"a parameter has moved to another device or type since its forward"):
            expected.sum().backward()
        layer(x.to(AHBM)).sum().backward()
        assert weight.grad.device == weight.device


def test_an_encoder_in_evaluation_is_made_of_operators_with_kernels() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 1).eval(), torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    with machine(AHEAD) as context, torch.no_grad():
        wanted = encoder(x, src_key_padding_mask=padding)
        found = encoder.to(AHBM)(x.to(AHBM), src_key_padding_mask=padding.to(AHBM))
        torch.testing.assert_close(found.cpu()[~padding], wanted[~padding], atol=1e-5, rtol=1e-4)
        assert not context.unmodelled


def test_a_training_script_as_for_a_gpu() -> None:
    result = run_bench(
        topology=ONE_CUBE,
        bench_fn=load_script(str(EXAMPLES / "train.py"), ()),
        engine_factory=lambda machine, _: GraphEngine(machine, enable_data=True),
        frontends=frontend_settings(["torch.as_cuda=true", "torch.strict=true"]),
    )
    result.raise_for_status()
    assert not result.unmodelled
    assert {"mm", "scaled_dot_product_attention", "_fused_adamw_"} <= {each.name for each in result.operators}
    assert sum(each.ns for each in result.operators) <= result.sim_ns + 0.001
