"""The cost of a host library's operators on the machine: launches, simulated time, and what the host computed.

A program that makes a model loads before it computes: the time of a run begins after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field

from kernbench.common.units import format_ns
from kernbench.common.values import state, value


@value
class OperatorUse:
    """An operator of a program: ``calls`` of it, the launches that carried them out, and their simulated time.

    ``ns``: from its call to its return, transfers included. ``modelled``: False when the host computed it.
    """

    name: str
    calls: int
    launches: int
    ns: float
    modelled: bool = True


@value
class LoadTime:
    """The time from the beginning of a program until it first computed, by ``until``: an operator, and its line.

    ``counted``: it is a part of the run's time, as the user asked.
    """

    ns: float
    until: str
    counted: bool = False

    @property
    def left_out_ns(self) -> float:
        """The time that is no part of the run's."""
        return 0.0 if self.counted else self.ns

    def __str__(self) -> str:
        says = "counted" if self.counted else "not counted; --from-load counts it"
        return f"loading: {format_ns(self.ns)} before {self.until} ({says})"


@state
class _Tally:
    calls: int = 0
    launches: int = 0
    ns: float = 0.0
    modelled: bool = True


@state
class OperatorTallies:
    """The operators of a run, by name. What an operator calls counts as its own.

    ``from_load``: what comes before the first that computes counts too. ``load``: that time; None while the program
    loads, and in a run that something else began.
    """

    now: Callable[[], float]
    from_load: bool = False
    load: LoadTime | None = None
    is_loading: bool = True
    _began_ns: float = field(init=False)
    _by_name: dict[str, _Tally] = field(default_factory=dict)
    _current: _Tally | None = None

    def __post_init__(self) -> None:
        self._began_ns = self.now()

    def end_loading(self, until: str) -> None:
        """The first operator that computes is about to: what there was before is forgotten, unless it counts."""
        self.is_loading = False
        self.load = LoadTime(self.now() - self._began_ns, until, self.from_load)
        if not self.from_load:
            self._by_name.clear()

    def count_from_begin(self) -> None:
        """A kernel of the program's own begins: if nothing has computed before, the run counts from its beginning."""
        self.is_loading = False

    @property
    def is_inside(self) -> bool:
        """True while an operator is being carried out."""
        return self._current is not None

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Inside, launches and time are those of operator ``name``, unless it is itself called by one."""
        if self._current is not None:
            yield
            return
        began = self.now()
        self._current = tally = _Tally()
        try:
            yield
        finally:
            self._current = None
            tally.ns = self.now() - began
            if tally.launches or tally.ns:
                total = self._by_name.setdefault(name, _Tally())
                total.calls += 1
                total.launches += tally.launches
                total.ns += tally.ns
                total.modelled = total.modelled and tally.modelled

    def count_launch(self) -> None:
        """A launch of the operator that is being carried out begins."""
        if self._current is not None:
            self._current.launches += 1

    def note_unmodelled(self) -> None:
        """The host computes (a part of) the operator that is being carried out."""
        if self._current is not None:
            self._current.modelled = False

    def uses(self) -> tuple[OperatorUse, ...]:
        """Return all operators that took time, the longest first."""
        found = [
            OperatorUse(name, each.calls, each.launches, each.ns, each.modelled) for name, each in self._by_name.items()
        ]
        return tuple(sorted(found, key=lambda each: (-each.ns, each.name)))
