"""The current SIP of a program: ``torch.ahbm`` and ``torch.accelerator``."""

from __future__ import annotations

import warnings

from kernbench.common.errors import InputError
from kernbench.runtime_api.numbers import whole_number
from kernbench.runtime_api.requests import Requests
from kernbench.runtime_api.workers import Workers, wants_debugging


class Devices:
    """The SIPs that a run may use, and the one that the rank that runs uses now."""

    __slots__ = ("_selected", "_workers")

    def __init__(self, selected: tuple[int, ...], workers: Workers) -> None:
        self._selected, self._workers = selected, workers

    @property
    def selected(self) -> tuple[int, ...]:
        """The ids of the SIPs that the run may use."""
        return self._selected

    @property
    def chosen(self) -> int | None:
        """The SIP that was set; None before."""
        return self._workers.current.device

    @property
    def current(self) -> int:
        """Where tensors go: the SIP that was set, else the first selected."""
        worker = self._workers.current
        if worker.device is None and worker.spawned and wants_debugging():
            warnings.warn(f"{worker} has no device: torch.ahbm.set_device({worker.rank})", RuntimeWarning, stacklevel=4)
        return self._selected[0] if worker.device is None else worker.device

    def choose(self, sip: int) -> None:
        """Make ``sip`` the current one; InputError when it is not selected."""
        number = whole_number(sip)
        if number not in self._selected:
            raise InputError(f"set_device({sip!r}): this run has the SIPs {', '.join(map(str, self._selected))}")
        self._workers.current.device = number


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

    __slots__ = ("_devices", "_requests", "_workers")

    def __init__(self, devices: Devices, requests: Requests, workers: Workers) -> None:
        self._devices, self._requests, self._workers = devices, requests, workers

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
        """Wait for everything that this rank has submitted."""
        self._requests.drain(self._workers.current)
