"""The devices of a program and its current device: ``torch.ahbm`` and ``torch.accelerator``."""

from __future__ import annotations

import re
import warnings
from typing import overload

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.runtime_api.arrays import whole_number
from kernbench.runtime_api.ranks import Workers, wants_debugging
from kernbench.runtime_api.requests import Requests
from kernbench.topology.builder import Topology
from kernbench.topology.spec import TopologySpec

ALL = "all"
_ONE = re.compile(r"sip:(\d+)")
_FORMS = f"write {ALL!r} or, for one SIP, 'sip:0'"


@value
class DeviceSelector:
    """The selection of SIPs of a machine: ``all``, or one SIP as ``sip:0``. Raises InputError for any other text."""

    text: str = ALL

    def __post_init__(self) -> None:
        if self.text != ALL and _ONE.fullmatch(self.text) is None:
            raise InputError(f"device {self.text!r} is no device; {_FORMS}")

    @property
    def sip(self) -> int | None:
        """The selected SIP; None for all."""
        match = _ONE.fullmatch(self.text)
        return int(match[1]) if match else None

    def __str__(self) -> str:
        return self.text


@overload
def resolve_device(selector: DeviceSelector | str) -> DeviceSelector: ...
@overload
def resolve_device(selector: DeviceSelector | str, machine: Topology | TopologySpec) -> tuple[int, ...]: ...
def resolve_device(
    selector: DeviceSelector | str, machine: Topology | TopologySpec | None = None
) -> DeviceSelector | tuple[int, ...]:
    """Return the ids of the SIPs that ``selector`` selects on a machine; without a machine, return a DeviceSelector.

    Raises InputError for a text that is no device, and for a SIP that the machine does not have.
    """
    selected = DeviceSelector(selector) if isinstance(selector, str) else selector
    if machine is None:
        return selected
    spec = machine.spec if isinstance(machine, Topology) else machine
    sip = selected.sip
    if sip is None:
        return tuple(range(spec.num_sips))
    if sip >= spec.num_sips:
        devices = ", ".join([ALL, *(f"sip:{number}" for number in range(spec.num_sips))])
        raise InputError(f"device 'sip:{sip}' is not in this machine; there are: {devices}")
    return (sip,)


class Devices:
    """The SIPs that a run may use, and the current SIP of the running rank."""

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
        """The SIP for new tensors: the SIP that the program has set, else the first selected SIP."""
        worker = self._workers.current
        if worker.device is None and worker.spawned and wants_debugging():
            warnings.warn(f"{worker} has no device: torch.ahbm.set_device({worker.rank})", RuntimeWarning, stacklevel=4)
        return self._selected[0] if worker.device is None else worker.device

    def choose(self, sip: int) -> None:
        """Make ``sip`` current. Raises InputError if it is not selected."""
        number = whole_number(sip)
        if number not in self._selected:
            raise InputError(f"set_device({sip!r}): this run has the SIPs {', '.join(map(str, self._selected))}")
        self._workers.current.device = number


class Ahbm:
    """``torch.ahbm``: the current SIP, modelled on ``torch.cuda``."""

    __slots__ = ("_devices",)

    def __init__(self, devices: Devices) -> None:
        self._devices = devices

    def set_device(self, device: int) -> None:
        """Make SIP ``device`` current. Raises InputError if the run does not have it."""
        self._devices.choose(device)

    def current_device(self) -> int | None:
        """Return the SIP that was set; None before."""
        return self._devices.chosen

    def device_count(self) -> int:
        """Return the number of SIPs of the run."""
        return len(self._devices.selected)


class Accelerator:
    """``torch.accelerator``: the functions of ``torch.ahbm`` under PyTorch's newer names."""

    __slots__ = ("_devices", "_requests", "_workers")

    def __init__(self, devices: Devices, requests: Requests, workers: Workers) -> None:
        self._devices, self._requests, self._workers = devices, requests, workers

    def set_device_index(self, device: int) -> None:
        """Make SIP ``device`` current. Raises InputError if the run does not have it."""
        self._devices.choose(device)

    def current_device_index(self) -> int | None:
        """Return the SIP that was set; None before."""
        return self._devices.chosen

    def device_count(self) -> int:
        """Return the number of SIPs of the run."""
        return len(self._devices.selected)

    def synchronize(self) -> None:
        """Wait for all requests of this rank."""
        self._requests.drain(self._workers.current)
