"""Functions that dynamo traces in place of functions of this package, which it does not trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.utils._device import _device_constructors


def enter_module(module: Module, args: object) -> None:
    """Do nothing: nodes of a trace have their modules."""


def leave_module(module: Module, args: object, output: object) -> None:
    """Do nothing: nodes of a trace have their modules."""


def is_factory(function: Callable[..., Any]) -> bool:
    """Stand in for `device_names.is_factory`, whose set of functions dynamo cannot hash."""
    return function in _device_constructors()


def with_number(x: object) -> object:
    """Stand in for `device_names.with_number`: the graph has the device without a number, the current SIP of a call."""
    return x


def validate_device(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Do nothing: ``flex_attention`` runs on the machine."""


def warn_once(warning_id: str, message: str, category: type[Warning] = UserWarning) -> None:
    """Do nothing: a remark of the report replaces the warning of ``flex_attention``."""
