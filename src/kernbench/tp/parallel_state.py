"""The tensor-parallel group of each rank, and the errors of sizes that do not split over it.

Every rank keeps its group in its context: two runs in one process know nothing of each other. Ranks begin with the
group that their program has made before it spawned them, if that was for as many. ``torch=`` names the context; inside
``with RuntimeContext(...)``, where benches and their ranks run, it may be left out.
"""

from __future__ import annotations

from dataclasses import field, replace

from kernbench.common.errors import InputError, UnsupportedError
from kernbench.common.values import value
from kernbench.runtime_api.context import AnyContext, current_context, require_context
from kernbench.runtime_api.ranks import HandedOn


class NotInitializedError(InputError, RuntimeError):
    """Tensor parallelism is used before ``initialize_model_parallel``."""


class SizeError(InputError, ValueError):
    """Sizes that do not fit each other, or cannot be split over the ranks."""


class GroupsError(UnsupportedError, NotImplementedError):
    """Tensor parallelism over some of the ranks."""


def split_evenly(what: str, size: int, parts: int, over: str = "ranks") -> int:
    """Return the share of each of ``parts`` in ``size``; SizeError unless it is the same for all, and at least 1."""
    if size < 1 or parts < 1:
        raise SizeError(f"{what}={size}, to be split over {parts} {over}: both must be at least 1")
    if size % parts:
        raise SizeError(f"{what}={size} cannot be split evenly over {parts} {over}: {size % parts} would be left")
    return size // parts


@value
class TensorParallel(HandedOn):
    """A rank of the tensor-parallel group: its context, its number, how many there are.

    ``by_program``: the program has made the group, before it spawned the rank.
    """

    torch: AnyContext
    rank: int
    world_size: int
    by_program: bool = field(default=False, compare=False)

    def in_rank(self, rank: int, n_ranks: int) -> TensorParallel | None:
        """Return the same group for rank ``rank``, if it is of as many ranks as are spawned."""
        return replace(self, rank=rank, by_program=True) if n_ranks == self.world_size else None


def initialize_model_parallel(size: int, torch: AnyContext | None = None) -> None:
    """Make all ``size`` ranks of the process group one tensor-parallel group; every rank calls it.

    The program may call it before ``spawn``, as ``init_process_group``: then it holds in its ranks, which may call it
    again. A program without ranks of its own may call it with 1. NotImplementedError unless ``size`` is the world size;
    InputError without a process group, and when it was called before.
    """
    context = require_context(torch)
    distributed = context.distributed
    world_size = distributed.get_world_size()
    if not isinstance(size, int) or size < 1:
        raise SizeError(f"initialize_model_parallel({size!r}): the size is a whole number of at least 1")
    in_group = distributed.is_initialized()
    if not in_group and world_size == 1 < size == context.topology.num_sips:
        raise _make_group_error()
    if size != world_size:
        raise GroupsError(
            f"initialize_model_parallel({size}): there are {world_size} ranks, and layers work with all of them; "
            f"several tensor-parallel groups side by side are not supported. Give {world_size}, or take a machine "
            f"of {size} SIPs"
        )
    if world_size > 1 and not in_group:
        raise _make_group_error()
    before = _find_state(context)
    if before is not None and not before.by_program:
        raise InputError("initialize_model_parallel: this rank did so before; destroy_model_parallel() ends it")
    context.rank_local.put(TensorParallel(context, distributed.get_rank(), world_size))


def _make_group_error() -> InputError:
    return InputError("initialize_model_parallel: call torch.distributed.init_process_group('ahbm') first")


def destroy_model_parallel(torch: AnyContext | None = None) -> None:
    """Take this rank out of its tensor-parallel group; layers that were made stay as they are.

    Called by the program, it also holds for the ranks that it spawns from then on.
    """
    require_context(torch).rank_local.drop(TensorParallel)


def model_parallel_is_initialized(torch: AnyContext | None = None) -> bool:
    """Return True when this rank has called ``initialize_model_parallel``, or its program has, before it spawned it."""
    return _find_state(torch) is not None


def get_tensor_model_parallel_rank(torch: AnyContext | None = None) -> int:
    """Return this rank's number in its tensor-parallel group; RuntimeError before ``initialize_model_parallel``."""
    return parallel_state(torch).rank


def get_tensor_model_parallel_world_size(torch: AnyContext | None = None) -> int:
    """Return the number of ranks of its tensor-parallel group; RuntimeError before ``initialize_model_parallel``."""
    return parallel_state(torch).world_size


def parallel_state(torch: AnyContext | None = None) -> TensorParallel:
    """Return the tensor-parallel group as this rank sees it; RuntimeError before ``initialize_model_parallel``."""
    found = _find_state(torch)
    if found is None:
        raise NotInitializedError(
            "tensor parallelism is not initialised on this rank: call "
            "initialize_model_parallel(torch.distributed.get_world_size(), torch=torch) first"
        )
    return found


def _find_state(torch: AnyContext | None) -> TensorParallel | None:
    context = torch or current_context()
    return None if context is None else context.rank_local.get(TensorParallel)
