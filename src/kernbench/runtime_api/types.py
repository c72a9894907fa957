"""Which devices a program runs on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import overload

from kernbench.common.errors import InputError
from kernbench.topology.builder import Topology
from kernbench.topology.spec import TopologySpec

ALL = "all"
_ONE = re.compile(r"sip:(\d+)")
_FORMS = f"write {ALL!r} or, for one SIP, 'sip:0'"


@dataclass(frozen=True, slots=True)
class DeviceSelector:
    """``all`` SIPs of a machine, or one: ``sip:0``. InputError for another text."""

    text: str = ALL

    def __post_init__(self) -> None:
        if self.text != ALL and _ONE.fullmatch(self.text) is None:
            raise InputError(f"device {self.text!r} is no device; {_FORMS}")

    @property
    def sip(self) -> int | None:
        """The SIP it names; None when it means all."""
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
    """What ``selector`` means: on a machine the ids of its SIPs, without one a DeviceSelector.

    InputError for a text that is no device, and for a SIP that the machine does not have.
    """
    selected = DeviceSelector(selector) if isinstance(selector, str) else selector
    if machine is None:
        return selected
    spec = machine.spec if isinstance(machine, Topology) else machine
    sip = selected.sip
    if sip is None:
        return tuple(range(spec.num_sips))
    if sip >= spec.num_sips:
        there = ", ".join([ALL, *(f"sip:{each}" for each in range(spec.num_sips))])
        raise InputError(f"device 'sip:{sip}' is not in this machine; there are: {there}")
    return (sip,)
