"""PyTorch tensors on the simulated machine."""
