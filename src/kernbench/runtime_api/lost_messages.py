"""Messages that nobody received: what queues of a context had in them when they were taken off, or begun anew."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from kernbench.ccl.queues import lines_of, unreceived_error
from kernbench.common.errors import IpcqError
from kernbench.engine.queues import UnreceivedMessage


class LostMessages:
    """Collects them for one context, and raises each once.

    What went because something else had failed is only listed, and only after a run that ends with a failure.
    """

    __slots__ = ("_errors", "_lost", "_n_raised", "_swept")

    def __init__(self) -> None:
        self._lost: list[UnreceivedMessage] = []
        self._swept: list[UnreceivedMessage] = []
        self._errors: list[IpcqError] = []
        self._n_raised = 0

    def add(self, messages: Iterable[UnreceivedMessage]) -> None:
        """These were lost although nothing had failed."""
        self._lost += messages

    def sweep(self, message: UnreceivedMessage) -> None:
        """This one went since something else had failed."""
        self._swept.append(message)

    def raise_new(self) -> None:
        """Raise IpcqError for what was lost since it was raised last, if anything was."""
        new = self._lost[self._n_raised :]
        self._n_raised = len(self._lost)
        if new:
            self._errors.append(unreceived_error(new))
            raise self._errors[-1]

    def raise_new_if_well(self) -> None:
        """Raise them, unless another error is being dealt with, which they must not hide: they come later then."""
        if sys.exception() is None:
            self.raise_new()

    def has_raised(self, error: Exception) -> bool:
        """Whether ``error`` is about such messages."""
        return any(each is error for each in self._errors)

    def listed(self, *, after_failure: bool) -> tuple[str, ...]:
        """What was lost, in lines for a report."""
        told = [*self._lost, *self._swept] if after_failure else self._lost
        return tuple(f"not received: {line}" for line in lines_of(told))
