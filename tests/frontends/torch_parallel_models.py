"""A small GPT for tests of programs that divide a model over ranks, and its results in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

WIDTH, HEADS, WORDS, LENGTH = 32, 4, 48, 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length = x.shape[:2]
        q, k, v = (m(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, n_blocks: int = 1) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(n_blocks))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def new_gpt() -> Gpt:
    """Return the model with the same weights at each call."""
    torch.manual_seed(0)
    return Gpt()


def batches(rows: int, n: int = 2) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``n`` batches of ids and targets, on the host."""
    numbers = torch.Generator().manual_seed(1)
    for _ in range(n):
        ids = torch.randint(WORDS, (rows, LENGTH + 1), generator=numbers)
        yield ids[:, :-1], ids[:, 1:]


def loss_of(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


def parallelize(model: Gpt, mesh: DeviceMesh, *, parallel_loss: bool = False) -> Gpt:
    """Divide the model by tensor and sequence parallelism."""
    head = ColwiseParallel(
        input_layouts=Shard(1),
        output_layouts=Shard(-1) if parallel_loss else Replicate(),
        use_local_output=not parallel_loss,
    )
    words = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    parallelize_module(model, mesh, {"words": words, "norm": SequenceParallel(), "head": head})
    whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    plan: dict[str, ParallelStyle] = {
        "norm": SequenceParallel(),
        "attention": whole,
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "norm2": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


def whole_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return host copies of complete tensors."""
    whole = {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in tensors.items()}
    return {name: x.detach().cpu().clone() for name, x in whole.items()}


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return whole_tensors({name: p.grad for name, p in model.named_parameters() if p.grad is not None})


def assert_near(results: Sequence[Mapping[str, Tensor]], expected: Mapping[str, Tensor], bound: float = 1e-6) -> None:
    """Check the tensors of all ranks. ``bound``: the largest error, relative to the largest of all elements."""
    largest = max(x.abs().max().item() for x in expected.values())
    for tensors in results:
        assert tensors.keys() == expected.keys()
        for name, x in tensors.items():
            error = (x.float() - expected[name]).abs().max().item()
            assert error <= bound * largest, f"{name}: {error / largest}"
