"""The ``torch`` of a bench: tensors, launches and comparisons on one machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar, cast

from kernbench.ccl.config import AlgorithmConfig, QueueSettings, SlotSize
from kernbench.ccl.install import IpcqPlan
from kernbench.ccl.loading import CclLike
from kernbench.ccl.topologies import QueueEdge
from kernbench.common.config import ConfigModel
from kernbench.common.errors import InputError, NoMachineError
from kernbench.common.late import late
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Completion, RequestHandle
from kernbench.messages.requests import HostMsg, KernelRef, PeCoord
from kernbench.policy.address.phyaddr import AddressFormat
from kernbench.runtime_api.alike_work import AlikeWork
from kernbench.runtime_api.arrays import DTypeNames
from kernbench.runtime_api.collective_report import CollectiveTallies
from kernbench.runtime_api.collectives import Collectives
from kernbench.runtime_api.compiled import CompilerTally
from kernbench.runtime_api.distributed import Distributed
from kernbench.runtime_api.factories import Generators, TensorFactories
from kernbench.runtime_api.folding import LaunchFolder
from kernbench.runtime_api.frontends import FrontendSettings
from kernbench.runtime_api.launch import Alike, KernelFunction, Launch, prepare_launch_on, prepare_launches
from kernbench.runtime_api.launch_kinds import content_of
from kernbench.runtime_api.launch_queue import CapturedLaunch, LaunchQueue, OnStart, depth_of
from kernbench.runtime_api.long_collectives import LongCollectives
from kernbench.runtime_api.memory import CleanupReport, ExtraMemories, TensorMemory
from kernbench.runtime_api.multiprocessing import Multiprocessing
from kernbench.runtime_api.operators import OperatorTallies
from kernbench.runtime_api.process_group import ProcessGroups, QueueInstaller
from kernbench.runtime_api.rank_report import RankNotes
from kernbench.runtime_api.rank_scheduler import RankScheduler
from kernbench.runtime_api.ranks import RankLocal, Workers
from kernbench.runtime_api.requests import RequestRecord, Requests, Work, is_queued
from kernbench.runtime_api.run_request import ReuseRules
from kernbench.runtime_api.tensor import KnownValues, Tensor
from kernbench.runtime_api.testing import Verifier
from kernbench.runtime_api.types import Accelerator, Ahbm, Devices, DeviceSelector, resolve_device
from kernbench.topology.spec import TopologySpec

if TYPE_CHECKING:
    from kernbench.runtime_api.reuse import ReusedLaunches

REUSE = "kernbench.runtime_api.reuse"
P = TypeVar("P", bound=ConfigModel)
# A context variable, so that concurrent contexts do not affect each other.
_CURRENT: ContextVar[RuntimeContext[Any] | None] = ContextVar("kernbench_context", default=None)


def current_context() -> RuntimeContext[Any] | None:
    """Return the active context, for libraries whose functions take no context.

    The active context is the innermost ``with RuntimeContext(...)`` around the code; for a rank, around its ``spawn``.
    """
    return _CURRENT.get()


def require_context(torch: AnyContext | None = None) -> AnyContext:
    """Return ``torch``, else the active context. Raises NoMachineError if there is none."""
    context = torch or current_context()
    if context is None:
        raise NoMachineError("no RuntimeContext is active: pass torch=, or run inside `with RuntimeContext(...)`")
    return context


class NoParams(ConfigModel):
    """The parameters of a program without parameters."""


class RuntimeContext(DTypeNames, TensorFactories, Generic[P]):
    """The host's side of one run, with the part of PyTorch's interface that programs need. A context manager.

    ``target_device``: the SIPs that the run may use. ``spec``: the machine, if it differs from the engine's.
    ``params``: the program's typed parameters. ``verify``: evaluate comparisons; by default True if the engine computes
    data. ``ccl``: the configuration of collectives, or its file; by default ./ccl.yaml, else the packaged file.
    ``frontends``: the settings of front ends. ``reuse``: let launches pass that are like earlier ones. ``log_rows``:
    fold the rows of launches that are over beyond so many rows of the log; None: never.

    Raises InputError for ``verify`` without data, and for a device that the machine does not have.
    """

    def __init__(
        self,
        engine: GraphEngine,
        target_device: DeviceSelector | str = "all",
        correlation_id: str = "",
        spec: TopologySpec | None = None,
        params: P | None = None,
        verify: bool | None = None,
        ccl: CclLike = None,
        frontends: FrontendSettings | None = None,
        reuse: ReuseRules | None = None,
        log_rows: int | None = None,
    ) -> None:
        if verify and not engine.enable_data:
            raise InputError("to verify, the engine has to compute data; build it with enable_data=True")
        self._engine = engine
        engine.machine.do_postponed()
        self._spec = spec or engine.spec
        self._params = cast("P", NoParams()) if params is None else params
        workers = self._workers = Workers()
        self._entered: list[Token[RuntimeContext[Any] | None]] = []
        scheduler = self._scheduler = RankScheduler(engine, workers)
        self._requests = Requests(engine, scheduler, workers, correlation_id)
        self.reuse: ReusedLaunches | None = None
        if reuse is not None:
            self.reuse = late(REUSE, "ReusedLaunches")(
                engine, self._requests, reuse, lambda: self.operators.is_left_out
            )
        self.folder = LaunchFolder(engine, log_rows, self._list_samples)
        self._memory = TensorMemory(engine, self._requests)
        self._extra_memories = ExtraMemories(engine, self._requests)
        self._devices = Devices(resolve_device(target_device, self._spec), workers)
        TensorFactories.__init__(self, self._memory, self._devices, Generators(workers))
        self.ahbm = Ahbm(self._devices)
        self.accelerator = Accelerator(self._devices, self._requests, workers)
        self._installer = QueueInstaller(engine, self._requests)
        self._groups = ProcessGroups(ccl, self._devices, self._installer, self._requests, scheduler)
        self.multiprocessing = Multiprocessing(scheduler, self._requests, workers, self._groups)
        long = None if reuse is None else LongCollectives(engine.machine)
        collectives = Collectives(self._spec, self._memory, self._requests, self.folder, long=long)
        self.distributed = Distributed(self._groups, collectives, self._requests, workers)
        fmt = AddressFormat(self._spec.address.format)
        self.testing = Verifier(verify=engine.enable_data if verify is None else verify, fmt=fmt)
        self.cleanup_report = CleanupReport()
        self.frontends = frontends or FrontendSettings()
        depth = depth_of(self.frontends.torch.queue, self._spec.sip.components.io_cpu.attrs.queue)
        self.queue = LaunchQueue(engine, self._requests, depth)
        self.known_values = KnownValues()  # of a front end, in a run without data
        # Counts of a front end's operators that the host computed; they take the time of copies.
        self.unmodelled: Counter[str] = Counter()
        self.operators: OperatorTallies = OperatorTallies(
            lambda: engine.now, self.frontends.torch.from_load, rank=lambda: workers.current.rank
        )
        self.collectives = CollectiveTallies()  # of a front end's ranks
        self.compiled = CompilerTally()  # of a front end's compiler
        self.remarks: list[str] = []  # of a front end, for the report
        self.rank_notes = RankNotes()
        self.alike_work = AlikeWork()  # of a front end's ranks
        self.script: Path | None = None  # the file that runs as the program, if any

    @property
    def engine(self) -> GraphEngine:
        """The machine that the program runs on."""
        return self._engine

    @property
    def topology(self) -> TopologySpec:
        """The configured machine, with every size derived from the configuration."""
        return self._spec

    @property
    def spec(self) -> Mapping[str, Any]:
        """The machine under the names of topology.yaml, read-only: ``torch.spec["sip"]["cube_mesh"]["w"]``."""
        return self._spec_by_name

    @cached_property
    def _spec_by_name(self) -> Mapping[str, Any]:
        return self._spec.with_sip_grid.as_mapping()

    @property
    def params(self) -> P:
        """The program's parameters; a bench declares their type."""
        return self._params

    @property
    def devices(self) -> Devices:
        """The SIPs of the run and the current SIP."""
        return self._devices

    @property
    def rank_local(self) -> RankLocal:
        """The objects that libraries store for the running rank; dropped when the rank or the context ends."""
        return self._workers.current.local

    @property
    def n_ranks(self) -> int:
        """The number of ranks that were spawned with the running one; 1 in a program without ranks."""
        return self._workers.current.n_ranks

    @property
    def has_data(self) -> bool:
        """True when the program can read values; in a run without data it need not compute expected values."""
        return self._engine.enable_data

    def bytes_in_use(self, sip: int) -> int:
        """Return the bytes of the SIP's HBM that tensors occupy."""
        return self._memory.bytes_in_use(sip)

    @property
    def requests(self) -> Requests:
        """Every request of the program."""
        return self._requests

    @property
    def traces(self) -> tuple[RequestRecord, ...]:
        """The requests that have ended, in the order of submission."""
        return self._requests.records

    def launch(
        self, name: str, kernel: KernelFunction | str, /, *args: object, async_op: bool = False, **kwargs: object
    ) -> Work:
        """Run a kernel on every PE that owns a shard of a tensor argument, and block until all are done.

        With ``async_op`` the call returns a Work at once, whose ``wait`` blocks. ``kernel`` is a function or the name
        of a kernel of the package. An argument may be a list of tensors, one for each SIP. All these SIPs then start
        at the same time, and the kernel on each SIP receives the tensor of that SIP. Raises the error of the kernel, or
        InputError for arguments that no kernel can take.
        """
        self._workers.check()
        self.operators.count_from_begin()
        launches = prepare_launches(name, kernel, args, kwargs)
        for sip in {sip for launch in launches for sip, _, _ in launch.message.targets}:
            self.queue.wait(sip)
        return self._start(launches, async_op=async_op)

    def launch_on(
        self,
        name: str,
        pes: Sequence[PeCoord],
        kernel: KernelRef,
        /,
        *args: object,
        async_op: bool = False,
        in_order: bool = False,
        alike: Alike | None = None,
        called_at: str = "",
        on_start: OnStart | None = None,
        written: Collection[Tensor] = (),
    ) -> Work:
        """Run a front end's program once on each of ``pes``, (sip, cube, pe), all of one SIP; otherwise as ``launch``.

        With ``in_order`` the launch enters the queue of its SIP, and the call returns when it has, unless
        ``torch.queue`` is 0. ``on_start`` is called when it has started, and again at each replay if it is captured.
        Tensors may be on any PEs of that SIP. The function is called with ``args`` and ``tl``; ``tl.site`` identifies
        its PE. Line numbers, in errors too, refer to ``kernel.file``. ``alike``: the program, by which a run that
        reuses launches finds launches that are alike. ``called_at``: the line of the program, for errors. ``written``:
        the tensors among ``args`` that the program may write.
        """
        launch = prepare_launch_on(name, pes, kernel, args, self._spec, alike, called_at)
        if self.queue.is_capturing:
            self._memory.map_on([(launch.tensors, launch.message.targets)])
            self.queue.capture(CapturedLaunch(launch, *self.operators.capture_launch(), on_start))
            return Work((), self._requests)
        if in_order and not self.queue.is_on:
            for layout in launch.tensors:
                self._memory.settle(layout)
        if not in_order or not self.queue.is_on:
            work = self._start((launch,), async_op=async_op)
        else:
            work = self._enqueue((launch,))
        for handle in work.handles[-1:]:
            self.operators.count_launch(handle)
        if self.n_ranks > 1:
            self._note_alike(work.handles[-1], kernel.name, alike, args, written)
        if on_start is not None:
            on_start(work)
        return work

    def _note_alike(
        self,
        handle: RequestHandle,
        name: str,
        alike: Alike | None,
        args: Sequence[object],
        written: Collection[Tensor],
    ) -> None:
        """Note a launch of a rank, for the report of work that ranks do alike."""
        launched = self._workers.current.rank, self.operators.current_name or name, handle
        content = None if alike is None else content_of(alike)
        operands = [tensor.layout.key for tensor in args if isinstance(tensor, Tensor)]
        self.alike_work.note_launch(launched, content, operands, {tensor.layout.key for tensor in written})

    def replay(self, captured: Sequence[CapturedLaunch]) -> Work:
        """Start the launches of a graph, all of one SIP, by one order. Each begins when the one before it has ended."""
        work = self._enqueue([replayed.launch for replayed in captured])
        for handle, replayed in zip(work.handles[-len(captured) :], captured, strict=True):
            self.operators.count_launch(handle, replayed.call, begins_call=replayed.begins_call)
            if replayed.on_start is not None:
                replayed.on_start(Work((handle,), self._requests))
        if not self.queue.is_on:
            work.wait()
        return work

    def _enqueue(self, launches: Sequence[Launch]) -> Work:
        """Order launches in the queue of their SIP. They begin after the requests in flight that use their tensors."""
        sip, n = launches[0].message.targets[0][0], len(launches)
        self.queue.make_room(sip)
        ordered = []
        for at, launch in enumerate(launches):
            users = [handle for layout in launch.tensors for handle in self._memory.uses.under_way(layout.key)]
            after = frozenset(user.request_id for user in users if not user.done and not is_queued(user))
            message = replace(
                launch.message,
                in_order=True,
                n_following=n - 1 - at,
                after=after,
                on_device=self._memory.renewals if self._engine.tracks_writes else None,
            )
            ordered.append(replace(launch, message=message))
        work = self._start(ordered, async_op=True)
        self.queue.add(sip, work.handles[-n:])
        return work

    def _start(self, launches: Sequence[Launch], *, async_op: bool) -> Work:
        posted = self._memory.map_on((launch.tensors, launch.message.targets) for launch in launches)
        if self.reuse is None:
            handles = self._requests.submit_together(launch.message for launch in launches)
        else:
            handles = self.reuse.submit(launches)
        self.folder.note(launches, handles)
        for handle, launch in zip(handles, launches, strict=True):
            self._memory.uses.note(handle, (layout.key for layout in launch.tensors))
        work = Work([*posted, *handles], self._requests)
        if not async_op:
            work.wait()
        return work

    @property
    def needs_kinds(self) -> bool:
        """True if launches have to state their programs, so that like launches can be found."""
        may_replay = self.queue.is_capturing and self.folder.may_fold
        return self.reuse is not None or self.n_ranks > 1 or may_replay or self.folder.is_near_limit

    def _list_samples(self) -> Collection[int]:
        """Return the launches in whose place others pass or may pass."""
        return () if self.reuse is None else self.reuse.list_samples()

    def submit(self, msg: HostMsg) -> RequestHandle:
        """Start a request of any type and return at once."""
        return self._requests.submit(msg)

    def wait(self, handle: RequestHandle) -> Completion:
        """Block until a request has ended; raise its error if it failed."""
        return self._requests.wait([handle])[0]

    def install_ipcq(
        self,
        algorithm: str | AlgorithmConfig | Mapping[str, Any] | None = None,
        world_size_override: int | None = None,
    ) -> IpcqPlan:
        """Install the queues of an algorithm for kernels that use them directly; block until all are installed.

        ``algorithm``: a name in ccl.yaml, or settings as returned by ``resolve_algorithm_config``.
        ``world_size_override``: a number of ranks; rank r is then the r-th PE. The returned plan maps ranks to PEs and
        lists each rank's neighbours. The queues are removed when the context ends.
        """
        return self._groups.plan(algorithm, world_size_override)

    def install_queues(
        self, key: str, edges: Sequence[QueueEdge], settings: QueueSettings, slots: Mapping[str, SlotSize]
    ) -> None:
        """Install queues of a fixed pattern for programs of a front end, once for each ``key``; block until installed.

        ``slots`` has the slots of edges by direction. The queues are removed when the context ends.
        """
        self._installer.install_once(key, edges, settings, slots)

    def uninstall_ipcq(self, plan: IpcqPlan) -> None:
        """Remove the queues of a plan, so that others can be installed.

        After the removal, raises IpcqError for messages that no PE has received. If a rank removes the queues, the
        error is raised when the ranks have ended.
        """
        self._installer.remove(plan.queues)
        if not self._workers.current.spawned:
            self._requests.lost.raise_new_if_well()

    def map_on(self, tensor: Tensor, pes: Sequence[PeCoord]) -> None:
        """Map a tensor on PEs of its SIP that do not own it, so that their kernels can use the tensor's address."""
        self._requests.wait(self._memory.map_on([((tensor.layout,), tuple(pes))]))

    def map_memory(self, part: str) -> int:
        """Return the address of a memory of ``cube.extra`` or ``pe.extra``, for ``tl.load`` and ``tl.store``.

        All PEs of its SIP can use the address until the context ends. The first call maps the memory in their MMUs,
        which takes simulated time. Raises UnsupportedError for a part without ``bytes``, UnknownNameError for an
        unknown part.
        """
        return self._extra_memories.map(part)

    def drain(self) -> None:
        """Wait for ranks that the program did not join, and for every request in flight."""
        self._workers.come_home()
        self.multiprocessing.finish()
        self._requests.drain()

    def cleanup(self) -> CleanupReport:
        """Wait for requests in flight, free every tensor, and report unfinished work and leaks.

        The report also lists messages that were not received; the end of the context raises IpcqError for them.
        """
        self.drain()
        left = (*self.multiprocessing.left, *self._groups.finish())
        self._extra_memories.release()
        return replace(self._memory.release_all(), left=(*left, *self._requests.lost.list_lines(after_failure=False)))

    def __enter__(self) -> Self:
        self._entered.append(_CURRENT.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clean up. After an error, abandon the requests in flight, and restore the machine if it still responds.

        After an interrupt, the machine is restored when it is next used. Raises IpcqError for messages that no PE
        received, unless an earlier IpcqError has reported them.
        """
        _CURRENT.reset(self._entered.pop())
        self._workers.come_home()
        self._workers.main.local.clear()
        if error is not None:
            if self.multiprocessing.untold:
                error.add_note(f"ranks that nobody joined:\n{self.multiprocessing.untold}")
            self._give_up(error)
            return
        try:
            self.cleanup_report = self.cleanup()
        except BaseException as failure:
            self._give_up(failure)
            raise
        self._requests.lost.raise_new()

    def _give_up(self, why: BaseException) -> None:
        """End the ranks and restore the machine; after an interrupt, when the machine is next used."""
        at_once = False
        try:
            self.multiprocessing.stop()
            at_once = not isinstance(why, KeyboardInterrupt)
        finally:  # also if the user interrupts again
            if at_once:
                self._leave()
            else:
                self._engine.machine.postpone(self._leave)

    def _leave(self) -> None:
        """Remove this context's state from the machine; if the machine no longer responds, only free the memory."""
        self._workers.take_over()
        in_order = False
        try:
            in_order = self._scheduler.machine_answers and self._leave_in_order()
        finally:  # also if the user interrupts again
            if not in_order:
                self._requests.forget()
                self._installer.forget()
                self._extra_memories.release(unmap=False)
                self.cleanup_report = self._memory.release_all(unmap=False)
            left = self._requests.lost.list_lines(after_failure=True)
            self.cleanup_report = replace(self.cleanup_report, left=left)

    def _leave_in_order(self) -> bool:
        try:
            self._requests.abandon()
            self._groups.finish()
            self._extra_memories.release()
            self.cleanup_report = self._memory.release_all()
        except Exception:  # report the error that led here instead
            return False
        return True


AnyContext: TypeAlias = RuntimeContext[Any]
