"""What goes wrong here: errors of the package's tree that are also those that PyTorch programs expect."""

from __future__ import annotations

from kernbench.common.errors import InputError, UnsupportedError


class NotInitializedError(InputError, RuntimeError):
    """Tensor parallelism is used before ``initialize_model_parallel``."""


class SizeError(InputError, ValueError):
    """Sizes that do not fit each other, or cannot be split over the ranks."""


class GroupsError(UnsupportedError, NotImplementedError):
    """Tensor parallelism over some of the ranks."""


def split_evenly(what: str, size: int, parts: int, over: str = "ranks") -> int:
    """What each of ``parts`` has of ``size``; SizeError unless it is the same for all, and at least 1."""
    if size < 1 or parts < 1:
        raise SizeError(f"{what}={size}, to be split over {parts} {over}: both must be at least 1")
    if size % parts:
        raise SizeError(f"{what}={size} cannot be split evenly over {parts} {over}: {size % parts} would be left")
    return size // parts
