"""What tensors of the machine and of the host answer alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod


class Shaped(ABC):
    """Something with a shape, which is asked for it as PyTorch's tensors are."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""

    @property
    def ndim(self) -> int:
        """How many axes."""
        return len(self.shape)

    def dim(self) -> int:
        """How many axes."""
        return len(self.shape)

    def size(self, dim: int | None = None) -> int | tuple[int, ...]:
        """The shape, or the elements along one axis."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """How many elements."""
        return prod(self.shape)
