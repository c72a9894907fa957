"""Front ends: run PyTorch and Triton programs on the simulated machine, unchanged."""
