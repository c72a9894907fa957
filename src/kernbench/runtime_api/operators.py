"""The cost of a host library's operators on the machine: launches, simulated time, and operators computed by the host.

A program that builds a model initialises it before it computes: the time of a run begins after the initialisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field

from kernbench.common.figures import figure
from kernbench.common.units import format_ns
from kernbench.common.values import state, value


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


@state
class OperatorTallies:
    """The operators of a run, by name. The figures of an operator include those of the operators that it calls.

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
        began = self.now()
        self._current = tally = _Tally()
        try:
            yield
        finally:
            self._current = None
            self.calls += 1
            tally.ns = self.now() - began
            if tally.launches or tally.ns:
                total = self._by_name.setdefault(name, _Tally())
                total.calls += 1
                total.launches += tally.launches
                total.ns += tally.ns
                total.modelled = total.modelled and tally.modelled

    def end_member(self, name: str, members: int, seconds: float) -> None:
        """Count a call of a member of the list ``name``, which took ``seconds`` of real time."""
        last = self.members
        calls = last.calls if last is not None and (last.name, last.members) == (name, members) else 0
        self.members = MemberCalls(name, members, calls + 1, seconds)

    def count_launch(self) -> None:
        """Count a launch of the current operator."""
        if self._current is not None:
            self._current.launches += 1

    def note_unmodelled(self) -> None:
        """Note that the host computes all or part of the current operator."""
        if self._current is not None:
            self._current.modelled = False

    def uses(self) -> tuple[OperatorUse, ...]:
        """Return all operators that took time, the longest first."""
        used = [
            OperatorUse(name, tally.calls, tally.launches, tally.ns, tally.modelled)
            for name, tally in self._by_name.items()
        ]
        return tuple(sorted(used, key=lambda use: (-use.ns, use.name)))
