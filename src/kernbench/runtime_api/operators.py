"""The cost of a host library's operators on the machine: launches, simulated time, and operators computed by the host.

A program that builds a model initialises it before it computes: the time of a run begins after the initialisation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field

from kernbench.common.figures import figure
from kernbench.common.units import format_ns, ps_to_ns
from kernbench.common.values import state, value
from kernbench.engine.requests import RequestHandle


@value
class OperatorUse:
    """An operator of a program: the number of its ``calls``, and the launches and the simulated time of these calls.

    ``ns``: the time from calls to returns, transfers included. ``modelled``: False if the host computed the operator.
    In a program of ranks, the figures are sums over ranks, and ``rank_ns`` has the time of each rank.
    """

    name: str = figure("the operator")
    calls: int = figure("its calls")
    launches: int = figure("launches of these calls")
    ns: float = figure("from calls to returns, in ns")
    modelled: bool = figure("False if the host computed it", default=True)
    rank_ns: tuple[float, ...] = figure("ns of each rank, in rank order", optional=True, column=False, default=())


@value
class ModuleUse:
    """A module of a program: the launches that it calls itself, without those of its parts, and their time.

    ``name``: the dotted path; "" outside of all modules. ``covers``: further modules whose operators are in these
    launches, because a compiler fused them. In a program of ranks, the figures are sums over ranks.
    """

    name: str = figure("the module")
    launches: int = figure("launches of its operators")
    ns: float = figure("time of its operators, in ns")
    covers: tuple[str, ...] = figure("modules whose operators are fused into these launches", optional=True, default=())


@value
class OperatorCall:
    """The operator of a call, and the module that calls it. ``covers``: as in `ModuleUse`."""

    name: str
    module: str = ""
    covers: tuple[str, ...] = ()


@value
class LoadTime:
    """The initialisation time: from the start of a program to its first computation.

    ``until``: the operator and the line of that computation. ``counted``: the run's time includes the initialisation,
    as the user requested.
    """

    ns: float = figure("time of the initialisation", column="load_ns")
    until: str = figure(column=False)
    counted: bool = figure(column=False, default=False)

    @property
    def left_out_ns(self) -> float:
        """The initialisation time that the run's time excludes."""
        return 0.0 if self.counted else self.ns

    def __str__(self) -> str:
        says = "counted" if self.counted else "not counted; --from-load counts it"
        return f"loading: {format_ns(self.ns)} before {self.until} ({says})"


@value
class MemberCalls:
    """Finished calls of the members of a list of modules, such as the layers of a model.

    ``name``: the list; ``members``: their number. ``last_s``: real seconds of the last call.
    """

    name: str
    members: int
    calls: int = 0
    last_s: float = 0.0

    @property
    def n_called(self) -> int:
        """Members called in the present pass over the list, or in the last one if all have been called."""
        return (self.calls - 1) % self.members + 1 if self.calls else 0

    @property
    def left_s(self) -> float:
        """Estimated real seconds to the end of the pass: each further call takes as long as the last one."""
        return (self.members - self.n_called) * self.last_s

    def __str__(self) -> str:
        n_pass = (self.calls - 1) // self.members + 1
        of_pass = f" in pass {n_pass}" if n_pass > 1 else ""
        left = f", about {self.left_s:,.0f} s to the last" if self.left_s else ""
        return f"{self.name}: {self.n_called} of {self.members} called{of_pass}{left}"


@state
class _Tally:
    calls: int = 0
    launches: int = 0
    ns: float = 0.0
    modelled: bool = True


@value
class _Launched:
    """A launch in flight, the call of an operator that made it, if any, and the time of that call in ns."""

    handle: RequestHandle
    tally: _Tally | None
    called_ns: float


@state
class _RankTallies:
    """The operators of a rank by call, the one under way, and the launches that the rank did not wait for."""

    by_call: dict[OperatorCall, _Tally] = field(default_factory=dict)
    current: _Tally | None = None
    current_call: OperatorCall | None = None
    begins_call: bool = False
    called_ns: float = 0.0
    launched: deque[_Launched] = field(default_factory=deque)
    counted_ns: float = 0.0  # all time until then belongs to an operator, or to none

    def count_ended(self) -> None:
        """Add the times of launches that have ended to those of their operators."""
        while self.launched and self.launched[0].handle.done:
            launched = self.launched.popleft()
            ns = self.count_until(ps_to_ns(launched.handle.ended_ps), launched.called_ns)
            if launched.tally is not None:
                launched.tally.ns += ns

    def count_until(self, end_ns: float, begin_ns: float) -> float:
        """Return the time until ``end_ns`` that was not counted, from ``begin_ns`` on."""
        ns = max(0.0, end_ns - max(self.counted_ns, begin_ns))
        self.counted_ns = max(self.counted_ns, end_ns)
        return ns


@state
class OperatorTallies:
    """The operators of a run, by rank, name and module. The figures of an operator include those that it calls.

    The time of an operator is that from calls to returns. A launch that the host does not wait for adds its time after
    the end of the launch before it. The host's later wait for it is not counted again.

    ``from_load``: include the time before the first computation. ``load``: the initialisation time, up to the first
    rank that computes. It is None during initialisation, and in a run whose first launch is a kernel of the program
    itself. ``calls``: operators that have ended. ``members``: calls of the list of modules that runs, or ran last.
    ``rank`` returns the running rank.
    """

    now: Callable[[], float]
    from_load: bool = False
    load: LoadTime | None = None
    is_loading: bool = True
    calls: int = 0
    members: MemberCalls | None = None
    rank: Callable[[], int] = lambda: 0
    _began_ns: float = field(init=False)
    _by_rank: dict[int, _RankTallies] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._began_ns = self.now()

    def _of_rank(self) -> _RankTallies:
        return self._by_rank.setdefault(self.rank(), _RankTallies())

    def end_loading(self, until: str) -> None:
        """Record the end of the initialisation, before the first operator ``until`` that computes.

        Earlier operators are dropped unless ``from_load``.
        """
        self.is_loading = False
        self.load = LoadTime(self.now() - self._began_ns, until, self.from_load)
        if not self.from_load:
            for tallies in self._by_rank.values():
                tallies.by_call.clear()
                tallies.launched.clear()

    def count_from_begin(self) -> None:
        """Note a launch by the program itself; if no operator came before, the run's time counts from the start."""
        self.is_loading = False

    @property
    def is_left_out(self) -> bool:
        """True in an initialisation that the run's time excludes."""
        return self.is_loading and not self.from_load

    @property
    def current_name(self) -> str:
        """The operator of the running rank that executes; "" for none."""
        call = self._of_rank().current_call
        return "" if call is None else call.name

    @property
    def is_inside(self) -> bool:
        """True while an operator executes."""
        return self._of_rank().current is not None

    @contextmanager
    def measure(self, call: OperatorCall) -> Iterator[None]:
        """Attribute launches and time of the ``with`` block to ``call``, unless another operator contains it."""
        mine = self._of_rank()
        if mine.current is not None:
            yield
            return
        mine.called_ns = self.now()
        mine.current = tally = mine.by_call.setdefault(call, _Tally())
        mine.current_call, mine.begins_call = call, True
        n_launches, was_modelled = tally.launches, tally.modelled
        try:
            yield
        finally:
            mine.current = mine.current_call = None
            self.calls += 1
            mine.count_ended()
            waited_ns = mine.count_until(self.now(), mine.called_ns)
            tally.ns += waited_ns
            if tally.launches > n_launches or waited_ns:
                tally.calls += 1
            else:
                tally.modelled = was_modelled

    def end_member(self, name: str, members: int, seconds: float) -> None:
        """Count a call of a member of the list ``name``, which took ``seconds`` of real time."""
        last = self.members
        calls = last.calls if last is not None and (last.name, last.members) == (name, members) else 0
        self.members = MemberCalls(name, members, calls + 1, seconds)

    def count_launch(
        self, handle: RequestHandle, call: OperatorCall | None = None, *, begins_call: bool = False
    ) -> None:
        """Count a launch of the current operator, if one executes.

        ``call``: the operator of a launch that is replayed; ``begins_call``: as ``capture_launch`` returned it.
        """
        mine = self._of_rank()
        tally, called_ns = mine.current, mine.called_ns
        if tally is None:
            tally, called_ns = mine.by_call.setdefault(call, _Tally()) if call else None, self.now()
        if tally is not None:
            tally.launches += 1
            tally.calls += begins_call
        mine.launched.append(_Launched(handle, tally, called_ns))

    def capture_launch(self) -> tuple[OperatorCall | None, bool]:
        """Return the current operator, if any, and True for its first launch in this call."""
        mine = self._of_rank()
        begins_call, mine.begins_call = mine.begins_call, False
        return mine.current_call, begins_call

    def note_unmodelled(self) -> None:
        """Note that the host computes all or part of the current operator."""
        mine = self._of_rank()
        if mine.current is not None:
            mine.current.modelled = False

    def uses(self) -> tuple[OperatorUse, ...]:
        """Return all operators that took time, over all ranks, the longest first."""
        by_name: dict[str, list[tuple[int, _Tally]]] = {}
        for rank, call, tally in self._tallies():
            by_name.setdefault(call.name, []).append((rank, tally))
        n_ranks = max((rank + 1 for of_ranks in by_name.values() for rank, _ in of_ranks), default=0)
        used = [_sum_ranks(name, of_ranks, n_ranks) for name, of_ranks in by_name.items()]
        return tuple(sorted(used, key=lambda use: (-use.ns, use.name)))

    def module_uses(self) -> tuple[ModuleUse, ...]:
        """Return the modules whose operators took time, in the order of their first calls; nothing without modules."""
        by_module: dict[str, list[tuple[OperatorCall, _Tally]]] = {}
        for _, call, tally in self._tallies():
            by_module.setdefault(call.module, []).append((call, tally))
        if not any(by_module):
            return ()
        return tuple(
            ModuleUse(
                module,
                sum(tally.launches for _, tally in calls),
                sum(tally.ns for _, tally in calls),
                tuple(dict.fromkeys(name for call, _ in calls for name in call.covers)),
            )
            for module, calls in by_module.items()
        )

    def _tallies(self) -> Iterator[tuple[int, OperatorCall, _Tally]]:
        """Yield rank, operator and tally of all operators that took time."""
        for rank, tallies in self._by_rank.items():
            tallies.count_ended()
            for call, tally in tallies.by_call.items():
                if tally.calls:
                    yield rank, call, tally


def _sum_ranks(name: str, of_ranks: Sequence[tuple[int, _Tally]], n_ranks: int) -> OperatorUse:
    """Return the use of an operator by all of ``n_ranks`` ranks; ``of_ranks``: its tallies, with their ranks."""
    rank_ns = [0.0] * n_ranks
    for rank, tally in of_ranks:
        rank_ns[rank] += tally.ns
    return OperatorUse(
        name,
        sum(tally.calls for _, tally in of_ranks),
        sum(tally.launches for _, tally in of_ranks),
        sum(rank_ns),
        all(tally.modelled for _, tally in of_ranks),
        tuple(rank_ns) if n_ranks > 1 else (),
    )
