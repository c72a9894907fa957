"""Images through residual blocks of convolutions."""

import torch
from torch import nn
from torch.nn import functional

IMAGES, SIDE, CHANNELS, BLOCKS = 1, 24, 32, 8


class Residual(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations after the block."""
        return functional.relu(x + self.second(functional.relu(self.first(x))))


torch.set_grad_enabled(False)
model = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1), *[Residual() for _ in range(BLOCKS)])
model = model.to("cuda", torch.bfloat16)
model(torch.zeros(IMAGES, 3, SIDE, SIDE, device="cuda", dtype=torch.bfloat16))
torch.cuda.synchronize()
