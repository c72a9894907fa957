"""``torch.distributed`` and ``torch.multiprocessing`` of PyTorch programs with many ranks."""
