"""The cost of a host library's operators on the machine: launches, simulated time, and operators computed by the host.

A program that builds a model initialises it before it computes: the time of a run begins after the initialisation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
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
    """

    name: str = figure("the operator")
    calls: int = figure("its calls")
    launches: int = figure("launches of these calls")
    ns: float = figure("from calls to returns, in ns")
    modelled: bool = figure("False if the host computed it", default=True)


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
class OperatorTallies:
    """The operators of a run, by name. The figures of an operator include those of the operators that it calls.

    The time of an operator is that from calls to returns. A launch that the host does not wait for adds its time after
    the end of the launch before it. The host's later wait for it is not counted again.

    ``from_load``: include the time before the first computation. ``load``: the initialisation time. It is None during
    initialisation, and in a run whose first launch is a kernel of the program itself. ``calls``: operators that have
    ended. ``members``: calls of the list of modules that runs, or ran last.
    """

    now: Callable[[], float]
    from_load: bool = False
    load: LoadTime | None = None
    is_loading: bool = True
    calls: int = 0
    members: MemberCalls | None = None
    _began_ns: float = field(init=False)
    _by_name: dict[str, _Tally] = field(default_factory=dict)
    _current: _Tally | None = None
    _current_name: str = ""
    _begins_call: bool = False
    _called_ns: float = 0.0
    _launched: deque[_Launched] = field(default_factory=deque)
    _counted_ns: float = 0.0  # all time until then belongs to an operator, or to none

    def __post_init__(self) -> None:
        self._began_ns = self.now()

    def end_loading(self, until: str) -> None:
        """Record the end of the initialisation, before the first operator ``until`` that computes.

        Earlier operators are dropped unless ``from_load``.
        """
        self.is_loading = False
        self.load = LoadTime(self.now() - self._began_ns, until, self.from_load)
        if not self.from_load:
            self._by_name.clear()
            self._launched.clear()

    def count_from_begin(self) -> None:
        """Note a launch by the program itself; if no operator came before, the run's time counts from the start."""
        self.is_loading = False

    @property
    def is_left_out(self) -> bool:
        """True in an initialisation that the run's time excludes."""
        return self.is_loading and not self.from_load

    @property
    def is_inside(self) -> bool:
        """True while an operator executes."""
        return self._current is not None

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Attribute launches and time of the ``with`` block to operator ``name``, unless another operator called it."""
        if self._current is not None:
            yield
            return
        self._called_ns = self.now()
        self._current = tally = self._by_name.setdefault(name, _Tally())
        self._current_name, self._begins_call = name, True
        n_launches, was_modelled = tally.launches, tally.modelled
        try:
            yield
        finally:
            self._current, self._current_name = None, ""
            self.calls += 1
            self._count_ended()
            waited_ns = self._count_until(self.now(), self._called_ns)
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

    def count_launch(self, handle: RequestHandle, operator: str = "", *, begins_call: bool = False) -> None:
        """Count a launch of the current operator, if one executes.

        ``operator``: the operator of a launch that is replayed; ``begins_call``: as ``capture_launch`` returned it.
        """
        tally, called_ns = self._current, self._called_ns
        if tally is None:
            tally, called_ns = self._by_name.setdefault(operator, _Tally()) if operator else None, self.now()
        if tally is not None:
            tally.launches += 1
            tally.calls += begins_call
        self._launched.append(_Launched(handle, tally, called_ns))

    def capture_launch(self) -> tuple[str, bool]:
        """Return the current operator, "" for none, and True for its first launch in this call."""
        begins_call, self._begins_call = self._begins_call, False
        return self._current_name, begins_call

    def _count_ended(self) -> None:
        """Add the times of launches that have ended to those of their operators."""
        while self._launched and self._launched[0].handle.done:
            launched = self._launched.popleft()
            ns = self._count_until(ps_to_ns(launched.handle.ended_ps), launched.called_ns)
            if launched.tally is not None:
                launched.tally.ns += ns

    def _count_until(self, end_ns: float, begin_ns: float) -> float:
        """Return the time until ``end_ns`` that was not counted, from ``begin_ns`` on."""
        ns = max(0.0, end_ns - max(self._counted_ns, begin_ns))
        self._counted_ns = max(self._counted_ns, end_ns)
        return ns

    def note_unmodelled(self) -> None:
        """Note that the host computes all or part of the current operator."""
        if self._current is not None:
            self._current.modelled = False

    def uses(self) -> tuple[OperatorUse, ...]:
        """Return all operators that took time, the longest first."""
        self._count_ended()
        used = [
            OperatorUse(name, tally.calls, tally.launches, tally.ns, tally.modelled)
            for name, tally in self._by_name.items()
            if tally.calls
        ]
        return tuple(sorted(used, key=lambda use: (-use.ns, use.name)))
