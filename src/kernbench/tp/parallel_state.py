"""The tensor-parallel group of each rank, and the errors of sizes that cannot be split over it.

Every rank stores its group in its context, so two runs in one process are independent. If a program initialised a group
and then spawned as many ranks, the ranks start with that group. ``torch=`` passes the context; the argument is
optional inside ``with RuntimeContext(...)``, where benches and their ranks run.
"""

from __future__ import annotations

from dataclasses import field, replace

from kernbench.common.errors import InputError, UnsupportedError
from kernbench.common.values import value
from kernbench.runtime_api.context import AnyContext, current_context, require_context
from kernbench.runtime_api.ranks import HandedOn


class NotInitializedError(InputError, RuntimeError):
    """Error: tensor parallelism is used before ``initialize_model_parallel``."""


class SizeError(InputError, ValueError):
    """Error: sizes do not match, or cannot be split over the ranks."""


class GroupsError(UnsupportedError, NotImplementedError):
    """Error: tensor parallelism is requested over only a part of the ranks."""


def split_evenly(label: str, size: int, parts: int, over: str = "ranks") -> int:
    """Return ``size / parts``. Raises SizeError unless it is an integer of at least 1."""
    if size < 1 or parts < 1:
        raise SizeError(f"{label}={size}, to be split over {parts} {over}: both must be at least 1")
    if size % parts:
        raise SizeError(f"{label}={size} cannot be split evenly over {parts} {over}: {size % parts} would be left")
    return size // parts


@value
class TensorParallel(HandedOn):
    """A rank of the tensor-parallel group: its context, its number, and the number of ranks.

    ``by_program``: the program initialised the group before it spawned the rank.
    """

    torch: AnyContext
    rank: int
    world_size: int
    by_program: bool = field(default=False, compare=False)

    def in_rank(self, rank: int, n_ranks: int) -> TensorParallel | None:
        """Return the group for rank ``rank``, or None if its size is not the number of spawned ranks."""
        return replace(self, rank=rank, by_program=True) if n_ranks == self.world_size else None


def initialize_model_parallel(size: int, torch: AnyContext | None = None) -> None:
    """Make all ``size`` ranks of the process group one tensor-parallel group. Every rank calls it.

    The program may call the function before ``spawn``, like ``init_process_group``. The group then applies to the
    spawned ranks, which may call the function again. A program without ranks may call it with ``size`` 1. Raises
    NotImplementedError unless ``size`` is the world size, and InputError without a process group or on a second call.
    """
    context = require_context(torch)
    distributed = context.distributed
    world_size = distributed.get_world_size()
    if not isinstance(size, int) or size < 1:
        raise SizeError(f"initialize_model_parallel({size!r}): the size must be an integer of at least 1")
    in_group = distributed.is_initialized()
    if not in_group and world_size == 1 < size == context.topology.num_sips:
        raise _make_group_error()
    if size != world_size:
        raise GroupsError(
            f"initialize_model_parallel({size}): there are {world_size} ranks, and layers work with all of them; "
            f"several tensor-parallel groups are not supported. Pass {world_size}, or use a machine "
            f"of {size} SIPs"
        )
    if world_size > 1 and not in_group:
        raise _make_group_error()
    before = _find_state(context)
    if before is not None and not before.by_program:
        raise InputError("initialize_model_parallel: already called on this rank; call destroy_model_parallel() first")
    context.rank_local.put(TensorParallel(context, distributed.get_rank(), world_size))


def _make_group_error() -> InputError:
    return InputError("initialize_model_parallel: call torch.distributed.init_process_group('ahbm') first")


def destroy_model_parallel(torch: AnyContext | None = None) -> None:
    """Remove this rank from its tensor-parallel group. Existing layers keep working.

    A call by the program also applies to ranks that the program spawns later.
    """
    require_context(torch).rank_local.drop(TensorParallel)


def model_parallel_is_initialized(torch: AnyContext | None = None) -> bool:
    """Return True if this rank, or its program before the spawn, has called ``initialize_model_parallel``."""
    return _find_state(torch) is not None


def get_tensor_model_parallel_rank(torch: AnyContext | None = None) -> int:
    """Return this rank's number in its group. Raises RuntimeError before ``initialize_model_parallel``."""
    return parallel_state(torch).rank


def get_tensor_model_parallel_world_size(torch: AnyContext | None = None) -> int:
    """Return the number of ranks of the group. Raises RuntimeError before ``initialize_model_parallel``."""
    return parallel_state(torch).world_size


def parallel_state(torch: AnyContext | None = None) -> TensorParallel:
    """Return the tensor-parallel group of this rank. Raises RuntimeError before ``initialize_model_parallel``."""
    state = _find_state(torch)
    if state is None:
        raise NotInitializedError(
            "tensor parallelism is not initialised on this rank: call "
            "initialize_model_parallel(torch.distributed.get_world_size(), torch=torch) first"
        )
    return state


def _find_state(torch: AnyContext | None) -> TensorParallel | None:
    context = torch or current_context()
    return None if context is None else context.rank_local.get(TensorParallel)
