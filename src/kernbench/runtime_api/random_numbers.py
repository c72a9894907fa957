"""Random numbers of programs: ``torch.manual_seed`` and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kernbench.common.errors import InputError
from kernbench.runtime_api.arrays import Array
from kernbench.runtime_api.numbers import whole_number
from kernbench.runtime_api.workers import Workers

# PyTorch's.
DEFAULT_SEED = 67280421310721


@dataclass(slots=True)
class Generator:
    """A stream of numbers that its seed determines."""

    seed: int
    numbers: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        # PyTorch's seeds may be negative, NumPy's not.
        self.numbers = np.random.Generator(np.random.PCG64(self.seed % 2**64))


class Generators:
    """The generator of each rank, as each process has its own: what one draws does not change another's numbers.

    A rank begins with the seed that the program has set last.
    """

    __slots__ = ("_workers",)

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def seed(self, seed: int) -> None:
        """Begin anew, for who runs now; InputError for what is no whole number."""
        number = whole_number(seed)
        if number is None:
            raise InputError(f"manual_seed({seed!r}): a seed is a whole number")
        self._workers.current.local.put(Generator(number))

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Normally distributed numbers, mean 0 and variance 1, as f32."""
        return self._current().numbers.standard_normal(shape, np.float32)

    def _current(self) -> Generator:
        local = self._workers.current.local
        found = local.get(Generator)
        if found is None:
            program = self._workers.main.local.get(Generator)
            found = Generator(DEFAULT_SEED if program is None else program.seed)
            local.put(found)
        return found
