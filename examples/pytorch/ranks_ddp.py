"""Train a small classifier with DistributedDataParallel: torchrun --nproc-per-node 2 ranks_ddp.py."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    """Train on the rows of this rank; DDP averages the gradients."""
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    features = torch.randn(64, 128)
    rows = TensorDataset(features, features[:, :16].argmax(1))
    sampler = DistributedSampler(rows, shuffle=False)
    loader = DataLoader(rows, batch_size=32 // dist.get_world_size(), sampler=sampler)

    layers = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16))
    model = DistributedDataParallel(layers.to(device), device_ids=[device.index], bucket_cap_mb=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    for features, classes in loader:
        loss = nn.functional.cross_entropy(model(features.to(device)), classes.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
