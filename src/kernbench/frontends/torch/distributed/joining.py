"""The functions of PyTorch that ranks call to join: those under ``init_process_group`` and ``new_group``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.cuda.nccl
import torch.distributed as dist
from torch.distributed import distributed_c10d

from kernbench.common.errors import InputError, there_are
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch.distributed.group import AhbmGroup
from kernbench.frontends.torch.distributed.meetings import meetings
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import replace
from kernbench.runtime_api.context import current_context

_NCCL = (2, 27, 5)
"""The version that programs see of the library in whose place the machine's collectives run."""
_BACKENDS = ("nccl", "gloo", DEVICE, "undefined")
_RANK, _SIZE = "RANK", "WORLD_SIZE"
_C10D: Any = distributed_c10d
_NAMES = ("_get_default_timeout", "_new_process_group_helper", "is_nccl_available", "rendezvous")
"""Functions that PyTorch calls when ranks join."""


def is_rank() -> bool:
    """Return whether a rank of a program on the machine calls."""
    context = current_context()
    return context is not None and context.multiprocessing.is_rank


def _check_place(rank: int, n_ranks: int) -> tuple[int, int]:
    """Return the number of this rank and the number of ranks. Raises InputError if the program has others in mind."""
    present, n_present = current().distributed.get_rank(), current().multiprocessing.n_ranks
    for name, has, argument in ((_RANK, present, rank), (_SIZE, n_present, n_ranks)):
        wants = argument if argument >= 0 else int(os.environ.get(name, has))
        if wants != has:
            raise InputError(
                f"{program_place()}: init_process_group: {name.lower()} is {wants}, but this is rank {present} of "
                f"{n_present} ranks, one for each process that was started"
            )
    return present, n_present


def _wrap_rendezvous(rendezvous: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return ``rendezvous`` changed for ranks: it yields a store of all ranks, the rank, and the number of ranks."""

    @wraps(rendezvous)
    def meet(url: str, rank: int = -1, world_size: int = -1, **options: Any) -> Iterator[Any]:
        if not is_rank():
            try:
                yield from rendezvous(url, rank, world_size, **options)
            except ValueError as error:
                if current_context() is None:
                    raise
                raise ValueError(f"{error}. This run has one rank: --ranks N runs the script in N ranks") from error
            return
        number, n_ranks = _check_place(rank, world_size)
        yield meetings().store(url), number, n_ranks

    return meet


def _check_backend(backend: str) -> bool:
    """Return whether a group is for host tensors alone. Raises InputError for a backend that is none of the machine."""
    names = {part.rpartition(":")[2].lower() for part in str(backend).split(",")}
    for name in names:
        if name not in _BACKENDS:
            raise InputError(
                f"{program_place()}: backend {backend!r}: {there_are(name, _BACKENDS)}; all are the machine's own "
                "collectives, for tensors of the host an exchange in no simulated time"
            )
    return names == {"gloo"}


def _wrap_helper(make_group: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that creates groups, changed for ranks: every backend is the machine's."""

    @wraps(make_group)
    def make(
        group_size: int, group_rank: int, global_ranks: Sequence[int], backend: str, *args: Any, **options: Any
    ) -> Any:
        if not is_rank() or str(backend) == dist.Backend.FAKE:
            return make_group(group_size, group_rank, global_ranks, backend, *args, **options)
        on_host = _check_backend(backend)
        if not global_ranks:
            _check_place(group_rank, group_size)
        options.pop("device_id", None)
        options["backend_options"] = on_host
        group, store = make_group(group_size, group_rank, global_ranks, DEVICE, *args, **options)
        if isinstance(group, AhbmGroup):
            _C10D._world.pg_map[group] = (dist.Backend(backend), store)  # noqa: SLF001
            if not global_ranks:
                group.join()
        return group, store

    return make


def _create(options: Any, on_host: bool) -> AhbmGroup:
    """Create a group for PyTorch, which calls this function for the machine's backend."""
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return AhbmGroup(options.group_rank, ranks, on_host=bool(on_host))


def _wrap_store(store: type[Any], place_of: Callable[..., str]) -> type[Any]:
    """Return a class of stores whose constructor returns, in a rank, a store of all ranks."""

    class StoreOfRanks(store):  # type: ignore[misc]
        def __new__(cls, *args: Any, **options: Any) -> Any:
            return meetings().store(place_of(*args, **options)) if is_rank() else store(*args, **options)

    StoreOfRanks.__name__ = StoreOfRanks.__qualname__ = store.__name__
    return StoreOfRanks


def _wrap_timeout(default_timeout: Callable[[Any], timedelta]) -> Callable[[Any], timedelta]:
    """Return the function of a backend's default timeout, changed for ranks: it warns of no missing library."""

    @wraps(default_timeout)
    def timeout(backend: Any) -> timedelta:
        return _C10D.default_pg_timeout if is_rank() else default_timeout(backend)  # type: ignore[no-any-return]

    return timeout


def _wrap_nccl(is_available: Callable[[], bool]) -> Callable[[], bool]:
    @wraps(is_available)
    def is_nccl_available() -> bool:
        return is_rank() or is_available()

    return is_nccl_available


def _wrap_nccl_version(version: Callable[[], tuple[int, ...]]) -> Callable[[], tuple[int, ...]]:
    @wraps(version)
    def nccl_version() -> tuple[int, ...]:
        return _NCCL if is_rank() else version()

    return nccl_version


def install() -> None:
    """Replace the functions that PyTorch calls when ranks join, and its stores, which would wait in real time."""
    dist.Backend.register_backend(DEVICE, _create, extended_api=True, devices=[DEVICE])
    wrappers: tuple[Callable[[Any], Any], ...] = (_wrap_timeout, _wrap_helper, _wrap_nccl, _wrap_rendezvous)
    for name, wrap in zip(_NAMES, wrappers, strict=True):
        replace(distributed_c10d, name, wrap(vars(distributed_c10d)[name]))
    replace(dist, "is_nccl_available", vars(distributed_c10d)["is_nccl_available"])
    replace(torch.cuda.nccl, "version", _wrap_nccl_version(torch.cuda.nccl.version))
    places: dict[str, Callable[..., str]] = {
        "TCPStore": lambda host_name="", port=0, *_, **__: f"tcp://{host_name}:{port}",
        "FileStore": lambda file_name="", *_, **__: f"file://{file_name}",
    }
    for name, place_of in places.items():
        replace(dist, name, _wrap_store(vars(dist)[name], place_of))
