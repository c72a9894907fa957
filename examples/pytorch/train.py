"""Train a small GPT on ``cuda``, as a program for a GPU does: kernbench run --script train.py --as-cuda."""

from __future__ import annotations

import torch
from models import Gpt
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
text = torch.randint(0, 96, (8, 33))
model = Gpt(vocab=96).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=device.type == "cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

start.record()
for (batch,) in DataLoader(TensorDataset(text), batch_size=4):
    rows = batch.to(device, non_blocking=True)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"loss {loss.item():.3f}")
end.record()
torch.cuda.synchronize()
print(f"{start.elapsed_time(end) * 1e3:.1f} us simulated, {torch.cuda.max_memory_allocated() / 1024:.0f} KiB at most")
