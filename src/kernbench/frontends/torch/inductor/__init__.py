"""PyTorch's compiler for device ``ahbm``: dynamo, AOTAutograd, and Inductor, whose Triton kernels run on the machine.

Importing this package imports nothing. `installed` is imported at the first call of ``torch.compile``.
"""
