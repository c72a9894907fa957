"""The current SIP of a program: ``torch.ahbm`` and ``torch.accelerator``."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.common.errors import InputError
from kernbench.runtime_api.requests import Requests


@dataclass(slots=True)
class Worker:
    """What a program has of its own: its rank, and the SIP it chose, if it chose one."""

    rank: int = 0
    device: int | None = None


class Devices:
    """The SIPs that a run may use, and the one that the program uses now."""

    __slots__ = ("_selected", "_worker")

    def __init__(self, selected: tuple[int, ...], worker: Worker) -> None:
        self._selected, self._worker = selected, worker

    @property
    def selected(self) -> tuple[int, ...]:
        """The ids of the SIPs that the run may use."""
        return self._selected

    @property
    def chosen(self) -> int | None:
        """The SIP that was set; None before."""
        return self._worker.device

    @property
    def current(self) -> int:
        """Where tensors go: the SIP that was set, else the first selected."""
        return self._selected[0] if self._worker.device is None else self._worker.device

    def choose(self, sip: int) -> None:
        """Make ``sip`` the current one; InputError when it is not selected."""
        if sip not in self._selected:
            raise InputError(f"set_device({sip!r}): this run has the SIPs {', '.join(map(str, self._selected))}")
        self._worker.device = sip


class Ahbm:
    """``torch.ahbm``: the current SIP, after ``torch.cuda``."""

    __slots__ = ("_devices",)

    def __init__(self, devices: Devices) -> None:
        self._devices = devices

    def set_device(self, device: int) -> None:
        """Make SIP ``device`` the current one; InputError when the run does not have it."""
        self._devices.choose(device)

    def current_device(self) -> int | None:
        """The SIP that was set; None before."""
        return self._devices.chosen

    def device_count(self) -> int:
        """How many SIPs the run has."""
        return len(self._devices.selected)


class Accelerator:
    """``torch.accelerator``: the same under PyTorch's newer names."""

    __slots__ = ("_devices", "_requests")

    def __init__(self, devices: Devices, requests: Requests) -> None:
        self._devices, self._requests = devices, requests

    def set_device_index(self, device: int) -> None:
        """Make SIP ``device`` the current one; InputError when the run does not have it."""
        self._devices.choose(device)

    def current_device_index(self) -> int | None:
        """The SIP that was set; None before."""
        return self._devices.chosen

    def device_count(self) -> int:
        """How many SIPs the run has."""
        return len(self._devices.selected)

    def synchronize(self) -> None:
        """Wait for everything that was submitted."""
        self._requests.drain()
