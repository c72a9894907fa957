"""Work that was started and may not be done, and the tensors it uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kernbench.engine.requests import RequestHandle
from kernbench.runtime_api.requests import Requests

TensorKey: TypeAlias = tuple[int, int]
"""A tensor in memory: its SIP and its first virtual address."""


class Work:
    """Requests under way; after PyTorch's class of this name."""

    __slots__ = ("_handles", "_requests")

    def __init__(self, handles: Sequence[RequestHandle], requests: Requests) -> None:
        self._handles, self._requests = tuple(handles), requests

    def wait(self, timeout: object = None) -> bool:
        """Block until done, then True; at once when it is done. Raises what went wrong.

        ``timeout`` is PyTorch's and has no effect: what can never be done is a SimulationDeadlock.
        """
        self._requests.wait(self._handles)
        return True

    def is_completed(self) -> bool:
        """Whether it is done at this simulated time."""
        return all(handle.done for handle in self._handles)


class Uses:
    """Which tensors the requests under way have as arguments: the host must not touch those before they are done."""

    __slots__ = ("_requests", "_using")

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._using: dict[TensorKey, list[RequestHandle]] = {}

    def note(self, handle: RequestHandle, keys: Iterable[TensorKey]) -> None:
        """``handle`` uses these tensors."""
        for key in dict.fromkeys(keys):
            self._using[key] = [*self.under_way(key), handle]

    def settle(self, key: TensorKey) -> None:
        """Wait for everything under way that uses a tensor, whoever submitted it."""
        using = self.under_way(key)
        if using:
            self._requests.wait(using)
        if not self.under_way(key):
            self._using.pop(key, None)

    def under_way(self, key: TensorKey) -> list[RequestHandle]:
        """The requests under way that use a tensor."""
        return [handle for handle in self._using.get(key, ()) if self._requests.unseen(handle)]
