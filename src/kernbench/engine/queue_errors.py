"""What is said of a use of queues that cannot be, by the machine and by the mock: ``name`` is what has the queues."""

from __future__ import annotations

from collections.abc import Iterable

from kernbench.common.errors import IpcqInvalidDirection, KernelError
from kernbench.engine.queue_state import QueuePair


def no_queue(name: str, direction: str, installed: Iterable[str]) -> IpcqInvalidDirection:
    """There is no queue of that name."""
    there = ", ".join(installed) or "none: install queues first"
    return IpcqInvalidDirection(f"{name} has no queue {direction!r}; installed: {there}")


def only_receives(name: str, direction: str, pairs: Iterable[QueuePair]) -> IpcqInvalidDirection:
    """One of ``pairs`` is sent on that has no ring to send to."""
    able = ", ".join(pair.direction for pair in pairs if pair.peer.rx_base_pa is not None) or "none"
    return IpcqInvalidDirection(f"{name}: queue {direction} only receives; those that send: {able}")


def only_sends(name: str, direction: str, pairs: Iterable[QueuePair]) -> IpcqInvalidDirection:
    """One of ``pairs`` is to receive that has no ring."""
    able = ", ".join(pair.direction for pair in pairs if pair.my_rx_base_pa is not None) or "none"
    return IpcqInvalidDirection(f"{name}: queue {direction} only sends; those that receive: {able}")


def too_large(name: str, pair: QueuePair, nbytes: int) -> KernelError:
    """A message that no slot can hold."""
    return KernelError(
        f"{name}: a message of {nbytes} bytes does not fit a slot of queue {pair.direction}: "
        f"slot_size is {pair.slot_size}; send it in pieces"
    )


def other_size(name: str, pair: QueuePair, sequence: int, nbytes: int) -> KernelError:
    """Message ``sequence``, which is there, is received as ``nbytes``."""
    return KernelError(
        f"{name}: message {sequence} of queue {pair.direction} has {pair.sizes[sequence]} bytes, "
        f"the kernel receives {nbytes}: both ends name the same shape and dtype"
    )
