"""``torch.compile`` on the machine: numbers, launches, their names, breaks, failures, and random numbers."""

from __future__ import annotations

import copy
import sys
from subprocess import run
from typing import Any

import pytest

from extras import need

need("torch")
need("triton")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import AHBM, AHEAD, EXAMPLES, machine  # noqa: E402
from kernbench.common.errors import UnmodelledError  # noqa: E402
from kernbench.common.imports import import_file  # noqa: E402

MODELS = import_file(EXAMPLES / "models.py", "the example models")


def launches(context: Any) -> int:
    """Return the launches of operators so far."""
    context.drain()
    return sum(use.launches for use in context.operators.uses())


def chain(x: Any, y: Any) -> Any:
    return torch.sigmoid(torch.relu(x * y + 1.0) * x - y) * 2


@pytest.mark.parametrize("ahead", [(), (AHEAD,)])
def test_a_chain_of_elementwise_operators_is_one_launch_with_the_same_numbers(ahead: tuple[str, ...]) -> None:
    x, y = torch.randn(2, 16, 128, generator=torch.Generator().manual_seed(1))
    with machine(*ahead) as context:
        on_machine = x.to(AHBM), y.to(AHBM)
        before = launches(context)
        result = torch.compile(chain)(*on_machine)
        assert launches(context) == before + 1
        torch.testing.assert_close(result.cpu(), chain(x, y))
        assert context.compiled.report().generated == context.compiled.graphs == 1


def test_a_graph_of_one_operator_runs_its_kernel() -> None:
    with machine() as context:
        x = torch.randn(8, 64, device=AHBM)
        for operator in (lambda x: x.argmax(-1), lambda x: x.cumsum(-1), lambda x: torch.softmax(x, -1), torch.relu):
            assert torch.equal(torch.compile(operator)(x), operator(x))
        report = context.compiled.report()
        assert (report.graphs, report.generated) == (4, 0)
        assert report.own == 4


def test_products_keep_their_bias_and_launches_have_modules_and_lines() -> None:
    with machine() as context:
        model = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 8)).to(AHBM)
        x = torch.randn(4, 32, device=AHBM)
        expected = model(x)
        compiled = torch.compile(model)
        assert next(iter(compiled.state_dict())) == "_orig_mod.0.weight"
        n = len(context.traces)
        result = compiled(x)
        titles = [record.name for record in context.traces[n:] if record.phase == "launch"]
        torch.testing.assert_close(result, expected)
    assert [title.partition(" test_torch")[0] for title in titles] == ["0 addmm", "1 silu", "2 addmm"]
    assert all("test_torch_compile.py:" in title for title in titles)


@pytest.mark.slow
def test_a_step_of_training_has_the_gradients_of_the_eager_model() -> None:
    torch.manual_seed(4)
    model, ids = MODELS.Gpt(50, 32, 1, 2, 16), torch.randint(0, 50, (2, 16))
    steps = {}
    for kind in ("cpu", "eager", "compiled"):
        with machine():
            there = copy.deepcopy(model) if kind == "cpu" else copy.deepcopy(model).to(AHBM)
            given = ids if kind == "cpu" else ids.to(AHBM)
            forward = torch.compile(there) if kind == "compiled" else there
            loss = functional.cross_entropy(forward(given).flatten(0, 1), given.flatten())
            loss.backward()
            steps[kind] = [loss.detach().cpu(), *(p.grad.cpu() for p in there.parameters() if p.grad is not None)]
    for reference, eager, compiled in zip(*steps.values(), strict=True):
        allowed = 2 * (eager - reference).abs().max() + 1e-6
        assert (compiled - reference).abs().max() <= allowed


def test_breaks_are_in_the_report_with_their_line() -> None:
    def broken(x: Any) -> Any:
        y = x * 2 + 1
        if y.sum().item() > 0:
            y = torch.relu(y) - 3
        return y * y

    x = torch.randn(8, 64)
    with machine("torch.strict=true") as context:
        torch.testing.assert_close(torch.compile(broken)(x.to(AHBM)).cpu(), broken(x))
        (line,) = context.compiled.report().breaks
        assert "test_torch_compile.py:" in line
        assert "item" in line


def test_what_fails_to_compile_runs_eagerly_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernbench.frontends.torch.inductor import graphs  # noqa: PLC0415 - it imports the compiler

    def fail(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("this graph\nis beyond it")

    monkeypatch.setattr(graphs, "compile_fx", fail)
    x = torch.randn(8, 64)
    with machine() as context:
        torch.testing.assert_close(torch.compile(chain)(x.to(AHBM), x.to(AHBM)).cpu(), chain(x, x))
        (line,) = context.compiled.report().eager
        assert line.endswith("NotImplementedError: this graph")
    with machine("torch.strict=true"), pytest.raises(UnmodelledError, match=r"torch\.compile: NotImplementedError"):
        torch.compile(chain)(x.to(AHBM), x.to(AHBM))


def test_the_setting_eager_turns_the_compiler_off() -> None:
    with machine("torch.compile=eager", "torch.strict=true") as context:
        model = nn.Linear(4, 4)
        assert torch.compile(model) is model
        assert context.remarks == ["torch.compile: ran eagerly, operator by operator (torch.compile=eager)"]


def test_random_numbers_are_those_of_the_eager_program() -> None:
    def draw(x: Any) -> Any:
        return functional.dropout(x * 2, 0.25) + torch.rand_like(x) + torch.randn(8, 16, device=x.device)

    with machine():
        x = torch.ones(8, 16, device=AHBM)
        torch.manual_seed(3)
        expected = draw(x).cpu()
        torch.manual_seed(3)
        torch.testing.assert_close(torch.compile(draw)(x).cpu(), expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_program_without_compile_imports_nothing_of_the_compiler() -> None:
    script = (
        "import sys, torch, kernbench.torch\n"
        "assert not {'torch._dynamo', 'torch._inductor', 'triton'} & set(sys.modules)"
    )
    done = run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("options", [{"backend": "eager"}, {"backend": "aot_eager"}, {"mode": "reduce-overhead"}])
def test_backends_and_modes_of_pytorch(options: dict[str, Any]) -> None:
    x = torch.randn(8, 64)
    with machine():
        compiled = torch.compile(fullgraph=True, **options)(chain)
        for _ in range(3):
            torch.testing.assert_close(compiled(x.to(AHBM), x.to(AHBM)).cpu(), chain(x, x))
