"""``torch.multiprocessing``: rank programs, all in this process, each a greenlet."""

from __future__ import annotations

from collections.abc import Callable

from kernbench.common.errors import InputError, SimulationDeadlock, UnsupportedError
from kernbench.common.program_line import SpawnException, describe_failures
from kernbench.runtime_api.arrays import whole_number
from kernbench.runtime_api.process_group import ProcessGroups
from kernbench.runtime_api.rank_scheduler import RankScheduler, Spawned
from kernbench.runtime_api.ranks import RankTask, Worker, Workers
from kernbench.runtime_api.requests import LostMessages, Requests

__all__ = ["Multiprocessing", "ProcessContext", "SpawnException"]

START_METHODS = ("spawn", "fork", "forkserver")


class ProcessContext:
    """Ranks that were spawned and not joined."""

    __slots__ = ("_joined", "_lost", "_scheduler", "_spawned", "daemon")

    def __init__(self, spawned: Spawned, scheduler: RankScheduler, daemon: bool, lost: LostMessages) -> None:
        self._spawned, self._scheduler, self.daemon, self._lost = spawned, scheduler, daemon, lost
        self._joined = False

    @property
    def is_joined(self) -> bool:
        """True when somebody has waited for them to the end."""
        return self._joined

    @property
    def report(self) -> str:
        """The errors of ranks up to now, as text; empty when there is none."""
        return describe_failures(self._spawned.errors)

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until all have ended, then True. SpawnException when one raised; SimulationDeadlock when none can go on.

        When a rank raises, the others end where they wait next, and what they have under way is dropped. RunError when
        an interrupt ended them; IpcqError when they have ended well and left messages in queues that they took
        off. The times are PyTorch's and have no effect: ranks always end.
        """
        self._joined = True
        self._run()
        self._raise_errors()
        if self._spawned.failure is not None:
            raise self._spawned.failure
        self._lost.raise_new_if_well()
        return True

    def stop(self) -> None:
        """End those that have not ended, where they wait, and drop what they have under way.

        SpawnException when one had raised.
        """
        self._joined = True
        self._scheduler.stop()
        self._spawned.finish()
        self._raise_errors()

    def _raise_errors(self) -> None:
        errors = self._spawned.errors
        if errors:
            raise SpawnException(errors) from _find_cause(errors)

    def _run(self) -> None:
        try:
            self._scheduler.join()
        except SimulationDeadlock:
            # It is the failure of these ranks, which have ended with it.
            return
        except BaseException as interrupt:
            self._scheduler.give_up(interrupt)
            raise


def _find_cause(errors: dict[int, BaseException]) -> BaseException:
    """Return the error that the traceback of all shows."""
    found = [error for _, error in sorted(errors.items())]
    return found[0] if len(found) == 1 else BaseExceptionGroup("what the ranks raised", found)


class Multiprocessing:
    """``torch.multiprocessing``, of one context. ``left``: what ranks that ended well had under way then."""

    __slots__ = ("_context", "_groups", "_requests", "_scheduler", "_workers", "left")

    def __init__(self, scheduler: RankScheduler, requests: Requests, workers: Workers, groups: ProcessGroups) -> None:
        self._scheduler, self._requests, self._workers = scheduler, requests, workers
        self._groups = groups
        self._context: ProcessContext | None = None
        self.left: tuple[str, ...] = ()

    def spawn(
        self,
        fn: Callable[..., object],
        args: tuple[object, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> ProcessContext | None:
        """Run ``fn(rank, *args)`` for every rank below ``nprocs``, all in simulated time; None once all have ended.

        With ``join=False`` return at once: ranks run when the program waits, last in ``join()``, which the end of the
        context does for those that are not a ``daemon``. Ranks share this process whatever ``start_method`` says.
        SpawnException when a rank raises, and when one had that nobody has joined. InputError for what cannot be
        spawned; UnsupportedError from a rank, and while other ranks run.
        """
        self._check(fn, args, nprocs, start_method)
        self.finish()
        self._groups.settle()
        own = self._workers.main.local
        workers = [Worker(rank, nprocs, spawned=True, local=own.for_rank(rank, nprocs)) for rank in range(nprocs)]
        self._groups.begin(workers)
        spawned = Spawned([RankTask(worker, fn, tuple(args)) for worker in workers], lambda: self._finish(spawned))
        self._context = ProcessContext(spawned, self._scheduler, daemon, self._requests.lost)
        self._scheduler.start(spawned)
        if not join:
            return self._context
        self._context.join()
        return None

    def finish(self) -> None:
        """Wait for ranks that nobody joined; end those of a daemon."""
        if self._context is None or self._context.is_joined:
            return
        if self._context.daemon:
            self._context.stop()
        else:
            self._context.join()

    @property
    def untold(self) -> str:
        """The errors of ranks that nobody has joined, as text; empty when there is none."""
        return "" if self._context is None or self._context.is_joined else self._context.report

    def stop(self) -> None:
        """End the ranks that have not ended, asking nothing of the machine."""
        self._scheduler.stop()

    def _check(self, fn: Callable[..., object], args: object, nprocs: int, start_method: str) -> None:
        if self._workers.current.spawned:
            raise UnsupportedError(f"{self._workers.current} cannot spawn ranks: the program does, once for all")
        if self._scheduler.busy:
            raise UnsupportedError("the ranks of the last spawn have not ended: join them first")
        if not callable(fn):
            raise InputError(f"spawn: fn is a {type(fn).__name__}, not a function of a rank")
        if not isinstance(args, tuple | list):
            raise InputError(f"spawn: args is a {type(args).__name__}; write a tuple, (x,) when there is one")
        if (whole_number(nprocs) or 0) < 1:
            raise InputError(f"spawn: nprocs={nprocs!r}, must be a whole number of at least 1")
        self._groups.check_size(nprocs)
        if start_method not in START_METHODS:
            raise InputError(f"spawn: start_method={start_method!r}, must be one of {', '.join(START_METHODS)}")

    def _finish(self, spawned: Spawned) -> None:
        """Clean up behind ranks that have ended.

        After a failure nothing of theirs goes on; else work that they left is noted.
        """
        workers = [task.worker for task in spawned.tasks]
        left = [f"{each}: {what}" for each in workers for what in self._requests.unseen_of(each)]
        left += self._groups.note_end(workers)
        if spawned.has_ended_well:
            # Of requests that no rank has waited for.
            _blame(spawned, self._requests.find_failures(workers))
        if spawned.has_ended_well:
            self.left += tuple(left)
            return
        self._groups.spoil()
        failed = self._requests.abandon(workers, describe_failures(spawned.errors), later=spawned.interrupted)
        if not spawned.errors:
            # Nobody could go on since a kernel of theirs had failed.
            _blame(spawned, failed)


def _blame(spawned: Spawned, failed: dict[Worker, Exception]) -> None:
    for task in spawned.tasks:
        task.error = failed.get(task.worker)
