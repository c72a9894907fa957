"""The process groups of each rank: PyTorch stores those of a process, and ranks share one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from kernbench.frontends.torch.tensor import replace

_PLAIN: Any = distributed_c10d._World  # noqa: SLF001 - PyTorch's extension point


class _RankWorld(_PLAIN):  # type: ignore[misc]
    """The groups of a rank, in place of those in variables of PyTorch's module."""

    group_count = 0
    pg_map: Any = None
    pg_names: Any = None
    pg_group_ranks: Any = None
    pg_backend_config: Any = None
    pg_to_tag: Any = None
    tags_to_pg: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.pg_map, self.pg_names, self.pg_group_ranks = {}, {}, {}
        self.pg_backend_config, self.pg_to_tag, self.tags_to_pg = {}, {}, {}


_separate_threads: Callable[[bool], None] = vars(_distributed_c10d)["_set_thread_isolation_mode"]
"""PyTorch's function, which its types leave out."""
_PROGRAM: Any = distributed_c10d._world  # noqa: SLF001
_WORLD: ContextVar[Any] = ContextVar("world", default=_PROGRAM)


class _WorldOfCaller:
    """The groups of the rank that calls, or of the program."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_WORLD.get(), name)

    def __setattr__(self, name: str, content: object) -> None:
        setattr(_WORLD.get(), name, content)


@contextmanager
def world_of_rank() -> Iterator[None]:
    """Give this rank groups of its own, whose names are apart from those of other ranks."""
    token = _WORLD.set(_RankWorld())
    _NAMES.enter()
    try:
        yield
    finally:
        _NAMES.leave()
        _WORLD.reset(token)


class _GroupNames:
    """PyTorch's names of groups, which belong to a thread while any rank runs."""

    def __init__(self) -> None:
        self._n_ranks = 0

    def enter(self) -> None:
        """Count a rank that begins."""
        self._n_ranks += 1
        _separate_threads(True)

    def leave(self) -> None:
        """Count a rank that ends."""
        self._n_ranks -= 1
        if not self._n_ranks:
            _separate_threads(False)


_NAMES = _GroupNames()


def install() -> None:
    """Let PyTorch find the groups of the rank that calls."""
    replace(distributed_c10d, "_world", _WorldOfCaller())
