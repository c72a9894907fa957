"""Train a small network with FSDP2: torchrun --nproc-per-node 4 ranks_fsdp.py."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    """Shard the parameters of every layer over the ranks, and train on the rows of this rank."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (ranks,))
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(2)]
    model = nn.Sequential(*blocks).cuda()
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    tokens, targets = torch.randn(2, 64, 64)
    rows = slice(64 * rank // ranks, 64 * (rank + 1) // ranks)
    for _ in range(2):
        loss = nn.functional.mse_loss(model(tokens[rows].cuda()), targets[rows].cuda())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
