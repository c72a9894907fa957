"""What tests of PyTorch's operators and models share: a small machine, the example models, a step of training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if find_spec("triton") is not None:
    import kernbench.triton  # noqa: F401 - before PyTorch's compiler imports triton

import torch

from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.frontends import frontend_settings
from kernbench.topology.builder import resolve_topology

EXAMPLES = Path(__file__).parents[2] / "examples" / "pytorch"
ONE_CUBE = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
AHBM = torch.device("ahbm")
AHEAD = "torch.queue=64"


@contextmanager
def machine(*settings: str, data: bool = True, topology: Any = ONE_CUBE) -> Iterator[RuntimeContext[Any]]:
    """Run what is inside on a machine. The host waits for each launch, unless ``settings`` have ``AHEAD``."""
    engine = GraphEngine(topology, enable_data=data)
    waiting = [] if AHEAD in settings else ["torch.queue=0"]
    with RuntimeContext(engine=engine, frontends=frontend_settings([*waiting, *settings])) as made:
        yield made


def train_step(model: Any, inputs: Any, loss_of: Callable[[Any], Any], **options: Any) -> tuple[Any, Any]:
    """Do one step of AdamW; return the result of the forward and the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    result = model(inputs)
    loss = loss_of(result)
    loss.backward()
    optimizer.step()
    return result.detach(), loss.detach()


def check_step(
    context: RuntimeContext[Any], model: Any, inputs: Any, loss_of: Callable[[Any], Any], **options: Any
) -> None:
    """A step on the machine gives what it gives on the host: result, loss, every gradient, the weights after it.

    Tolerances: 1e-4 of the largest element of each, 1e-6 beside that; a weight after its step of 1e-3: 1e-5 where its
    gradient is more than a hundredth of the largest (Adam makes whole steps of noise). Nothing is computed by the
    host.
    """
    there = copy.deepcopy(model).to(AHBM)
    on_machine = [t.cpu() for t in train_step(there, inputs.to(AHBM), loss_of, **options)]
    on_host = train_step(model, inputs, loss_of)
    for mine, wanted in zip(on_machine, on_host, strict=True):
        _assert_near(mine, wanted)
    gradients = zip(there.named_parameters(), model.parameters(), strict=True)
    for (name, mine), wanted in gradients:
        assert mine.grad is not None, name
        _assert_near(mine.grad.cpu(), wanted.grad, name)
        told = wanted.grad.abs() > 1e-2 * wanted.grad.abs().max()
        off = (mine.detach().cpu() - wanted.detach()).abs()
        assert off[told].max() < 1e-5, (name, off[told].max())
        assert off.max() < 2.1e-3, (name, off.max())
    assert not context.unmodelled, context.unmodelled


def _assert_near(mine: Any, wanted: Any, name: str = "") -> None:
    atol = 1e-6 + 1e-4 * wanted.abs().max().item()
    torch.testing.assert_close(mine, wanted, atol=atol, rtol=0, msg=lambda text: f"{name}: {text}")
