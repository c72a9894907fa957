"""Work that was started and may not be done, and the tensors it uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kernbench.runtime_api.engine_api import RequestHandle
from kernbench.runtime_api.requests import Requests

TensorKey: TypeAlias = tuple[int, int]
"""A tensor in memory: its SIP and its first virtual address."""


class Work:
    """Requests under way; after PyTorch's class of this name."""

    __slots__ = ("_handles", "_requests")

    def __init__(self, handles: Sequence[RequestHandle], requests: Requests) -> None:
        self._handles, self._requests = tuple(handles), requests

    def wait(self) -> bool:
        """Block until done, then True; at once when it is done. Raises what went wrong."""
        self._requests.wait(self._handles)
        return True

    def is_completed(self) -> bool:
        """Whether it is done at this simulated time."""
        return all(handle.done for handle in self._handles)


class Uses:
    """Which tensors the requests under way have as arguments: the host must not touch those before they are done."""

    __slots__ = ("_requests", "_uses")

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._uses: list[tuple[RequestHandle, frozenset[TensorKey]]] = []

    def note(self, handle: RequestHandle, keys: Iterable[TensorKey]) -> None:
        """``handle`` uses these tensors."""
        self._uses.append((handle, frozenset(keys)))

    def settle(self, key: TensorKey) -> None:
        """Wait for everything under way that uses a tensor."""
        self._uses = [use for use in self._uses if self._requests.unseen(use[0])]
        using = [handle for handle, keys in self._uses if key in keys]
        if using:
            self._requests.wait(using)
