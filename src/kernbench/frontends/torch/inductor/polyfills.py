"""Functions that dynamo traces in place of functions of this package, which it does not trace."""

from __future__ import annotations

from torch import Tensor, device
from torch.nn import Module


def enter_module(module: Module, args: object) -> None:
    """Do nothing: nodes of a trace have their modules."""


def leave_module(module: Module, args: object, output: object) -> None:
    """Do nothing: nodes of a trace have their modules."""


def with_number(x: device) -> device:
    """Stand in for `device_names.with_number`: the graph has the device without a number, the current SIP of a call."""
    return x


def validate_device(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Do nothing: ``flex_attention`` runs on the machine."""


def warn_once(warning_id: str, message: str, category: type[Warning] = UserWarning) -> None:
    """Do nothing: a remark of the report replaces the warning of ``flex_attention``."""
