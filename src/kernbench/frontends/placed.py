"""The part of each other's tensors that front ends know."""

from __future__ import annotations

from kernbench.runtime_api.tensor import Tensor


class Placed:
    """A tensor of a host library whose elements lie on the machine; kernels take it as an argument."""

    def place(self) -> tuple[Tensor, int]:
        """The tensor of the machine that holds them, and bytes from its beginning to the first element."""
        raise NotImplementedError
