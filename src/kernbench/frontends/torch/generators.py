"""Generators of random numbers with the interface of a GPU's: a seed and an offset. The host draws the numbers."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Self, TypeAlias

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from kernbench.common.errors import InputError

HostGenerator = torch.Generator
"""PyTorch's class, before it is replaced"""
Device: TypeAlias = "torch.device | str | int"
_BYTES = 16
_LAST = 64  # states for which copies are recognised


class Generator(torch.Generator):
    """A generator of the machine. Its state is that of a GPU generator: 16 bytes, a seed and an offset.

    Kernels that generate random numbers read seed and offset, and then advance the offset. PyTorch draws from
    ``host``, a generator of the host. If PyTorch has drawn since the last state query, the next query reports an
    offset that is 4 larger.
    """

    device = torch.device("cpu")

    def __new__(cls, device: Device = "cpu", host: torch.Generator | None = None) -> Self:  # noqa: ARG004
        """Create an object that PyTorch accepts as a host generator. ``host``: another generator to draw from."""
        return super().__new__(cls)

    def __init__(self, device: Device = "cpu", host: torch.Generator | None = None) -> None:
        self.host: torch.Generator = self if host is None else host
        self.device = torch.device(device)
        self._offset = 0
        self._seen = HostGenerator.get_state(self.host)
        # The host state of each reported state, as long as the reported state lives. The latest host states are also
        # stored by seed and offset, to restore copies of reported states.
        self._reported: MutableMapping[Tensor, tuple[tuple[int, int], Tensor]] = WeakTensorKeyDictionary()
        self._last: dict[tuple[int, int], Tensor] = {}

    @property
    def _has_offset(self) -> bool:
        return self.device.type != "cpu"

    def manual_seed(self, seed: int) -> Self:
        """Restart with ``seed``."""
        HostGenerator.manual_seed(self.host, seed)
        self._begin_at(0)
        return self

    def initial_seed(self) -> int:
        """Return the seed with which the generator last restarted."""
        return int(HostGenerator.initial_seed(self.host))

    def seed(self) -> int:
        """Restart with a random seed, and return it."""
        chosen = int(HostGenerator.seed(self.host))
        self._begin_at(0)
        return chosen

    def get_state(self) -> Tensor:
        """Return the seed and the offset as bytes; for a host generator, return its full state."""
        drawn = HostGenerator.get_state(self.host)
        if not self._has_offset:
            return drawn
        if not torch.equal(drawn, self._seen):
            self._begin_at(self._offset + 4)
        state = _as_bytes(self.initial_seed(), self._offset)
        numbers = _numbers_of(state)
        self._reported[state] = numbers, drawn
        self._last.pop(numbers, None)
        if len(self._last) == _LAST:
            del self._last[next(iter(self._last))]
        self._last[numbers] = drawn
        return state

    def set_state(self, new_state: Tensor) -> torch.Generator:
        """Restore a reported state or its copy. Any other state sets the offset, and the seed if that differs."""
        if not self._has_offset:
            return HostGenerator.set_state(self.host, new_state)
        if new_state.dtype is not torch.uint8 or new_state.numel() != _BYTES:
            raise InputError(
                f"a state of {new_state.numel()} elements of {new_state.dtype}: a generator of the machine takes "
                f"{_BYTES} bytes, a seed and an offset"
            )
        numbers = seed, offset = _numbers_of(new_state)
        before, drawn = self._reported.get(new_state, (numbers, self._last.get(numbers)))
        if drawn is not None and before == numbers:
            HostGenerator.set_state(self.host, drawn)
        elif seed != _numbers_of(_as_bytes(self.initial_seed(), 0))[0]:
            HostGenerator.manual_seed(self.host, seed)
        self._begin_at(offset)
        return self

    def _begin_at(self, offset: int) -> None:
        self._offset, self._seen = offset, HostGenerator.get_state(self.host)


def _as_bytes(seed: int, offset: int) -> Tensor:
    numbers = [(number + 2**63) % 2**64 - 2**63 for number in (seed, offset)]
    return torch.tensor(numbers, dtype=torch.int64, device="cpu").view(torch.uint8)


def _numbers_of(state: Tensor) -> tuple[int, int]:
    seed, offset = state.view(torch.int64).tolist()
    return seed, offset


DEFAULT = Generator("cuda", torch.default_generator)
"""The default generator of the machine, which draws from that of the host."""
