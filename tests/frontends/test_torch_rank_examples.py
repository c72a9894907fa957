"""Tests that the examples of many ranks run as they are, and that their losses are those of one process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "pytorch"


def train(model: torch.nn.Module, lr: float, batches: list, loss_of, clip: float | None = None) -> list[float]:
    """Train in this process, without ranks, and return the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for inputs, targets in batches:
        loss = loss_of(model(inputs), targets)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_ddp() -> list[float]:
    features = torch.randn(64, 128)
    classes = features[:, :16].argmax(1)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16))
    batches = [(features[rows : rows + 32], classes[rows : rows + 32]) for rows in (0, 32)]
    return train(model, 3e-3, batches, nn.functional.cross_entropy)


def train_tensor_parallel() -> list[float]:
    namespace: dict = {"__name__": "example"}
    exec(compile((EXAMPLES / "ranks_tensor_parallel.py").read_text(), "example", "exec"), namespace)
    model = namespace["FeedForward"](128, 512)
    tokens, targets = torch.randn(2, 32, 128)
    return train(model, 1e-2, [(tokens, targets)] * 2, torch.nn.functional.mse_loss)


def train_fsdp() -> list[float]:
    nn = torch.nn
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(2)]
    tokens, targets = torch.randn(2, 64, 64)
    return train(nn.Sequential(*blocks), 3e-3, [(tokens, targets)] * 2, nn.functional.mse_loss, clip=1.0)


def train_pipeline() -> list[float]:
    nn = torch.nn
    layers = [nn.Sequential(nn.Linear(256, 256, bias=False), nn.GELU()) for _ in range(4)]
    tokens, targets = torch.randn(2, 32, 256)
    return train(nn.Sequential(*layers), 3e-3, [(tokens, targets)] * 2, nn.functional.mse_loss)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks", "train_alone"),
    [
        ("ddp", 2, train_ddp),
        ("tensor_parallel", 2, train_tensor_parallel),
        ("fsdp", 4, train_fsdp),
        ("pipeline", 2, train_pipeline),
    ],
)
def test_an_example_of_ranks_has_the_losses_of_one_process(name: str, ranks: int, train_alone) -> None:
    command = ["run", "--script", str(EXAMPLES / f"ranks_{name}.py"), "--as-cuda", "--ranks", str(ranks)]
    command += ["--set", f"system.sips.count={ranks}"]
    main = "import sys; from kernbench.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", main, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    losses = [float(text) for text in re.findall(r"^loss (\S+)$", done.stdout, re.MULTILINE)]
    torch.manual_seed(0)
    assert losses == pytest.approx(train_alone(), abs=5e-4)
