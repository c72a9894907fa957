"""Train layers as stages of a pipeline with 1F1B: torchrun --nproc-per-node 2 ranks_pipeline.py."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def main() -> None:
    """Give each rank its layers; the first has the tokens, the last the targets."""
    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(256, 256, bias=False), nn.GELU()) for _ in range(4)]
    tokens, targets = torch.randn(2, 32, 256)
    share = len(layers) // ranks
    part = nn.Sequential(*layers[share * rank : share * (rank + 1)]).to(device)

    stage = PipelineStage(part, rank, ranks, device)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(part.parameters(), lr=3e-3, fused=True)
    for _ in range(2):
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(tokens.to(device))
        elif rank == ranks - 1:
            schedule.step(target=targets.to(device), losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        if losses:
            print(f"loss {torch.stack(losses).mean().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
