"""``torch.multiprocessing``: rank programs, each a greenlet or a thread of this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from kernbench.common.errors import InputError, SimulationDeadlock, UnsupportedError
from kernbench.common.program_line import SpawnException, describe_failures
from kernbench.runtime_api.arrays import whole_number
from kernbench.runtime_api.process_group import ProcessGroups
from kernbench.runtime_api.rank_process import ProcessStates, RankProcess
from kernbench.runtime_api.rank_scheduler import RankScheduler, Spawned
from kernbench.runtime_api.ranks import (
    GreenletRunner,
    MakeRunner,
    RankGate,
    RankTask,
    Sleep,
    ThreadRunner,
    Worker,
    Workers,
)
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
        """True when the program has waited for the ranks to end."""
        return self._joined

    @property
    def report(self) -> str:
        """The errors of ranks until now, as text; empty without errors."""
        return describe_failures(self._spawned.errors)

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until all ranks have ended, and return True.

        If a rank raises, the others end at their next wait, and their requests in flight are dropped. The time-out
        arguments are accepted for PyTorch programs and have no effect, because ranks always end. Raises:

        - SpawnException if a rank raised;
        - SimulationDeadlock if no rank can proceed;
        - RunError if an interrupt ended the ranks;
        - IpcqError if the ranks succeeded, but the queues that they removed had messages that no PE had received.
        """
        self._joined = True
        self._run()
        self._raise_errors()
        if self._spawned.failure is not None:
            raise self._spawned.failure
        self._lost.raise_new_if_well()
        return True

    def stop(self) -> None:
        """End the unfinished ranks where they wait, and drop their requests in flight.

        Raises SpawnException if a rank had raised.
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
            # The deadlock is the recorded failure of these ranks, which have ended.
            return
        except BaseException as interrupt:
            self._scheduler.give_up(interrupt)
            raise


def _find_cause(errors: dict[int, BaseException]) -> BaseException:
    """Return the error for the traceback: the only one, or a group of all."""
    in_order = [error for _, error in sorted(errors.items())]
    return in_order[0] if len(in_order) == 1 else BaseExceptionGroup("errors of the ranks", in_order)


class Multiprocessing:
    """``torch.multiprocessing`` of one context. ``left``: requests in flight when ranks ended without an error.

    ``runner``: the runner of programs of kernbench.
    """

    runner: ClassVar[type[GreenletRunner[Sleep] | ThreadRunner[Sleep]]] = GreenletRunner
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
        *,
        process: RankProcess | None = None,
    ) -> ProcessContext | None:
        """Run ``fn(rank, *args)`` for every rank below ``nprocs`` in simulated time; return None when all have ended.

        With ``join=False``, the call returns at once. The ranks then run whenever the program waits, at the latest in
        ``join()``, and the end of the context joins all ranks except ``daemon`` ranks. Ranks share this process for
        every ``start_method``. With ``process``, each rank runs in a thread and has these parts of a process.

        Raises SpawnException if a rank raises, or if a rank of an unjoined spawn had raised. Raises InputError for
        arguments that cannot be spawned, and UnsupportedError in a rank or while other ranks run.
        """
        self._check(fn, args, nprocs, start_method)
        if process is not None:
            self._check_sips(nprocs)
        self.finish()
        self._groups.settle()
        local = self._workers.main.local
        workers = [Worker(rank, nprocs, spawned=True, local=local.for_rank(rank, nprocs)) for rank in range(nprocs)]
        self._groups.begin(workers)
        make_runner: MakeRunner = self.runner
        states = None
        if process is not None:
            make_runner, states = partial(ThreadRunner, around=process.around), ProcessStates(process)
            for worker in workers:
                worker.has_process, worker.device = True, worker.rank
        tasks = [RankTask(worker, fn, tuple(args), make_runner) for worker in workers]
        spawned = Spawned(tasks, lambda: self._finish(spawned), states)
        self._context = ProcessContext(spawned, self._scheduler, daemon, self._requests.lost)
        self._scheduler.start(spawned)
        if not join:
            return self._context
        self._context.join()
        return None

    @property
    def is_rank(self) -> bool:
        """True in a rank."""
        return self._workers.current.spawned

    @property
    def n_ranks(self) -> int:
        """The number of ranks spawned together with this one; 1 outside of a rank."""
        return self._workers.current.n_ranks

    def pass_through(self, gate: RankGate) -> None:
        """Wait, in a rank, until a gate is open; other ranks run meanwhile."""
        self._scheduler.pass_through(gate)

    def finish(self) -> None:
        """Wait for ranks that the program did not join; end daemon ranks."""
        if self._context is None or self._context.is_joined:
            return
        if self._context.daemon:
            self._context.stop()
        else:
            self._context.join()

    @property
    def untold(self) -> str:
        """The errors of ranks that the program did not join, as text; empty without errors."""
        return "" if self._context is None or self._context.is_joined else self._context.report

    def stop(self) -> None:
        """End the unfinished ranks without a request to the machine."""
        self._scheduler.stop()

    def _check(self, fn: Callable[..., object], args: object, nprocs: int, start_method: str) -> None:
        if self._workers.current.spawned:
            raise UnsupportedError(f"{self._workers.current} cannot spawn ranks: only the program can")
        if self._scheduler.busy:
            raise UnsupportedError("the ranks of the last spawn have not ended: join them first")
        if not callable(fn):
            raise InputError(f"spawn: fn is a {type(fn).__name__}, not a function of a rank")
        if not isinstance(args, tuple | list):
            raise InputError(f"spawn: args is a {type(args).__name__}; write a tuple, such as (x,) for one argument")
        if (whole_number(nprocs) or 0) < 1:
            raise InputError(f"spawn: nprocs={nprocs!r}, must be a whole number of at least 1")
        self._groups.check_size(nprocs)
        if start_method not in START_METHODS:
            raise InputError(f"spawn: start_method={start_method!r}, must be one of {', '.join(START_METHODS)}")

    def _check_sips(self, nprocs: int) -> None:
        n_sips = self._groups.world_size
        if nprocs > n_sips:
            raise InputError(
                f"{nprocs} ranks for {n_sips} SIP{'s' * (n_sips > 1)}: each rank has a SIP of its own; "
                f"--set system.sips.count={nprocs}"
            )

    def _finish(self, spawned: Spawned) -> None:
        """Clean up after ranks that have ended.

        After a failure their requests are abandoned; otherwise their unfinished work is noted.
        """
        workers = [task.worker for task in spawned.tasks]
        left = [f"{worker}: {request}" for worker in workers for request in self._requests.unseen_of(worker)]
        left += self._groups.note_end(workers)
        if spawned.has_ended_well:
            # Errors of requests that no rank has waited for.
            _blame(spawned, self._requests.find_failures(workers))
        if spawned.has_ended_well:
            self.left += tuple(left)
            return
        self._groups.spoil()
        failed = self._requests.abandon(workers, describe_failures(spawned.errors), later=spawned.interrupted)
        if not spawned.errors:
            # The ranks could not proceed because one of their kernels failed.
            _blame(spawned, failed)


def _blame(spawned: Spawned, failed: dict[Worker, Exception]) -> None:
    for task in spawned.tasks:
        task.error = failed.get(task.worker)
