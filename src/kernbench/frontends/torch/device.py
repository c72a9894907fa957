"""``torch.ahbm``: what PyTorch and programs ask of the device's module, after ``torch.cuda``."""

from __future__ import annotations

from typing import Any

import torch

from kernbench.frontends.torch.storage import current


class Stream:
    """A stream; all of a program's launches are in one order, whatever the stream."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def synchronize(self) -> None:
        """Wait for what has been started."""
        synchronize()


def is_available() -> bool:
    """Yes."""
    return True


def is_initialized() -> bool:
    """Yes."""
    return True


def device_count() -> int:
    """The SIPs of the run."""
    return len(current().devices.selected)


def current_device() -> int:
    """The SIP that tensors are made on."""
    return current().devices.current


def set_device(device: Any) -> None:
    """Make a SIP the current one."""
    current().ahbm.set_device(device if isinstance(device, int) else torch.device(device).index)


def synchronize(device: object = None) -> None:  # noqa: ARG001 - all of them
    """Wait for what this rank has started."""
    current().accelerator.synchronize()


def current_stream(device: object = None) -> Stream:  # noqa: ARG001 - of any
    """The only one there is."""
    return Stream()


def set_stream(stream: Stream) -> None:
    """There is only one."""


def empty_cache() -> None:
    """Nothing: what Python has dropped is used again."""


def manual_seed_all(seed: int) -> None:
    """Nothing: random numbers are those of the host's generator."""


def get_amp_supported_dtype() -> list[Any]:
    """The types that autocast may take."""
    return [torch.float16, torch.bfloat16]


def _is_in_bad_fork() -> bool:
    """Tell PyTorch, before it seeds, that it may."""
    return False
