"""PyTorch programs whose launches run ahead of the host: numbers, times, events, graphs of launches."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import kernbench as kb  # noqa: E402
import kernbench.torch  # noqa: E402
from frontends.torch_programs import AHBM, AHEAD, EXAMPLES, machine  # noqa: E402
from kernbench.common.errors import InputError  # noqa: E402
from kernbench.frontends.torch import device as ahbm  # noqa: E402

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).cuda()
x = torch.ones(4, 32).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


def chain(x: Any, steps: int) -> Any:
    for _ in range(steps):
        x = functional.relu(x) * 0.5 + 1
    return x


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "steps.py"
    path.write_text(SCRIPT)
    return path


def run(script: Path, queue: int | None = None, **options: Any) -> kb.Run:
    settings = {} if queue is None else {"torch.queue": queue}
    where = {"machine": "one-cube"} | options
    result = kb.run(script=script, as_cuda=True, settings=settings, observe=False, **where)
    result.raise_for_status()
    return result


def test_times_are_equal_with_and_without_data_and_shorter_than_those_of_waits(script: Path) -> None:
    waiting, ahead, without = run(script, 0), run(script), run(script, data=False)
    assert ahead.latency_ns == without.latency_ns < 0.75 * waiting.latency_ns
    assert ahead.launch_queue == without.launch_queue
    assert waiting.launch_queue is None
    report = ahead.launch_queue
    assert report is not None
    assert report.launches == sum(operator.launches for operator in ahead.operators)
    assert 0 < report.hidden_ns <= waiting.latency_ns - ahead.latency_ns + 0.1 * waiting.latency_ns


def test_the_times_of_operators_add_up_to_that_of_the_run(script: Path) -> None:
    for queue in (0, None):
        result = run(script, queue, data=False)
        total = sum(operator.ns for operator in result.operators)
        assert total == pytest.approx(result.latency_ns, rel=0.02)


def test_more_ahead_is_never_longer(script: Path) -> None:
    times = [run(script, queue, data=False).latency_ns for queue in (0, 1, 4, 64)]
    assert all(later <= earlier * 1.001 for earlier, later in pairwise(times))  # refresh may fall otherwise


def test_launches_of_a_run_that_reuses_them_run_ahead_too(script: Path) -> None:
    simulated, reused = run(script, data=False), run(script, data=False, reuse=True)
    assert reused.reuse is not None
    assert reused.reuse.passed > 0
    assert reused.latency_ns == pytest.approx(simulated.latency_ns, rel=0.02)


def test_an_event_is_the_end_of_the_work_before_it() -> None:
    with machine(AHEAD) as context:
        x = torch.ones(64, 64, device=AHBM)
        first, last = ahbm.Event(enable_timing=True), ahbm.Event(enable_timing=True)
        first.record()
        y = chain(x, 4)
        last.record()
        began_ns = context.engine.now
        with pytest.raises(InputError, match=r"not complete; call event.synchronize\(\)"):
            first.elapsed_time(last)
        assert not last.query()
        last.synchronize()
        assert last.query()
        assert first.elapsed_time(last) * 1e6 == pytest.approx(context.engine.now - began_ns)
        assert y.sum().item() == chain(torch.ones(64, 64), 4).sum()


def test_a_program_may_poll_an_event() -> None:
    with machine(AHEAD):
        event = ahbm.Event()
        chain(torch.ones(64, 64, device=AHBM), 4)
        event.record()
        polls = 0
        while not event.query():
            polls += 1
        assert polls > 1


def test_dropped_memory_is_reused_in_order() -> None:
    with machine(AHEAD):
        x = torch.arange(64.0, device=AHBM)
        for step in range(6):
            x = torch.full((64,), float(step), device=AHBM) + x  # storages of earlier steps are used again
        assert torch.equal(x.cpu(), torch.arange(64.0) + 15)


def test_a_host_write_waits_for_the_launches_that_read() -> None:
    with machine(AHEAD):
        x = torch.ones(64, device=AHBM)
        y = chain(x, 3)
        x.copy_(torch.zeros(64))
        assert torch.equal(y.cpu(), chain(torch.ones(64), 3))


def capture(function: Any, *inputs: Any) -> tuple[Any, Any]:
    graph = ahbm.CUDAGraph()
    with ahbm.graph(graph):
        output = function(*inputs)
    return graph, output


@pytest.mark.parametrize("settings", [(), (AHEAD,)], ids=["waiting", "ahead"])
def test_a_graph_computes_anew_at_each_replay(settings: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    with machine(*settings):
        on_machine = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(AHBM)
        on_machine.load_state_dict(model.state_dict())
        x = torch.zeros(4, 32, device=AHBM)
        with torch.no_grad():
            on_machine(x)
            graph, output = capture(on_machine, x)
            for _ in range(3):
                values = torch.randn(4, 32)
                x.copy_(values)
                others = chain(torch.ones(256, device=AHBM), 2)  # must not use the memory of the graph
                graph.replay()
                torch.testing.assert_close(output.cpu(), model(values), rtol=1e-4, atol=1e-5)
                assert torch.equal(others.cpu(), chain(torch.ones(256), 2))


def test_a_graph_takes_no_longer_than_its_launches_in_the_queue() -> None:
    with machine(AHEAD) as context:
        x = torch.ones(64, 64, device=AHBM)
        chain(x, 6)
        times = []
        graph, _ = capture(chain, x, 6)
        for program in (lambda: chain(x, 6), graph.replay):
            ahbm.synchronize()
            began_ns = context.engine.now
            program()
            ahbm.synchronize()
            times.append(context.engine.now - began_ns)
        assert times[1] <= times[0]


def test_memory_of_a_graph_returns_with_it() -> None:
    with machine(AHEAD):
        x = torch.ones(1024, device=AHBM)
        graph, output = capture(chain, x, 3)
        reserved = ahbm.memory_reserved()
        graph.reset()
        del graph, output
        chain(x, 3)
        assert ahbm.memory_reserved() == reserved


@pytest.mark.parametrize(
    "program", [lambda x: x.sum().item(), lambda x: x.copy_(torch.zeros(64)), lambda x: torch.rand(64, device=AHBM)]
)
def test_copies_and_random_numbers_are_refused_in_a_capture(program: Any) -> None:
    with machine(AHEAD) as context:
        x = torch.ones(64, device=AHBM)
        with pytest.raises(InputError, match="a graph of launches is being captured"):
            capture(program, x)
        assert not context.queue.is_capturing
        assert x.sum().item() == 64


def test_a_graph_without_a_capture_has_no_launches() -> None:
    with machine():
        with pytest.raises(InputError, match="capture some first"):
            ahbm.CUDAGraph().replay()
        with pytest.raises(InputError, match="no memory before its capture"):
            ahbm.CUDAGraph().pool()


CALLABLES = """
import copy
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
on_host = copy.deepcopy(model)
model.cuda()
graphed = torch.cuda.make_graphed_callables(model, (torch.zeros(4, 32, device="cuda", requires_grad=True),))
x = torch.randn(4, 32)
on_machine = x.cuda().requires_grad_()
output = graphed(on_machine)
output.square().sum().backward()
x.requires_grad_()
expected = on_host(x)
expected.square().sum().backward()
torch.testing.assert_close(output.cpu(), expected, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(on_machine.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
"""


def test_graphed_callables_go_forward_and_backward(tmp_path: Path) -> None:
    path = tmp_path / "callables.py"
    path.write_text(CALLABLES)
    run(path)


DECODE = """
import sys
sys.path.insert(0, {examples!r})
import torch
from models import DecoderLayer
torch.set_default_device("cuda"), torch.set_default_dtype(torch.bfloat16), torch.set_grad_enabled(False)
layer = DecoderLayer(512, 8, 2, 1408, 0)
cache = [torch.zeros(1, 2, 128, 64) for _ in range(2)]
x, angles = torch.zeros(1, 1, 512), torch.zeros(1, 32)
for _ in range(2):
    layer(x, angles, list(cache))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("topology", "ratio"), [("default", 0.95), ("one-cube", 0.75)])
def test_a_decode_layer_hides_the_way_of_the_host(tmp_path: Path, topology: str, ratio: float) -> None:
    path = tmp_path / "decode.py"
    path.write_text(DECODE.format(examples=str(EXAMPLES)))
    spread = kb.load_machine(topology, overrides={"cube.hbm.refresh": "spread"})
    try:
        waiting, ahead = (run(path, queue, data=False, machine=spread).latency_ns for queue in (0, None))
    finally:  # the program changed PyTorch's defaults
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert ahead <= ratio * waiting


def test_records_are_as_before_but_for_times() -> None:
    def records(*settings: str) -> list[tuple[Any, ...]]:
        torch.manual_seed(0)
        with machine(*settings) as context:
            model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).to(AHBM)
            model(torch.ones(4, 32, device=AHBM)).square().mean().backward()
            context.drain()
            return sorted(
                (record.component, record.kind, str(record.output), *map(str, record.inputs))
                for record in context.engine.op_log
            )

    assert records() == records(AHEAD)
