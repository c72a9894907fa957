"""Who waits, found by what ends the wait: a completion costs only those that it wakes."""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from typing import TypeAlias

from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.runtime_api.rank_task import Gate, RankTask, Sleep

Sleeper: TypeAlias = RankTask | None
"""A rank; None: the program."""
_Among: TypeAlias = dict[Sleeper, None]


class Sleepers:
    """The sleeps under way. The engine watches the requests that they wait for, each as long as anybody does."""

    __slots__ = ("_at_gates", "_by_request", "_engine", "_giving_way", "_sleeps")

    def __init__(self, engine: GraphEngine) -> None:
        self._engine = engine
        self._sleeps: dict[Sleeper, Sleep] = {}
        self._by_request: dict[int, _Among] = {}
        self._at_gates: dict[Gate, _Among] = {}
        self._giving_way: _Among = {}

    @property
    def any_rank(self) -> bool:
        """Whether a rank sleeps."""
        return len(self._sleeps) > (None in self._sleeps)

    @property
    def requests(self) -> KeysView[int]:
        """The numbers of the requests that are waited for."""
        return self._by_request.keys()

    @property
    def giving_way(self) -> list[Sleeper]:
        """Those that could go on at once."""
        return list(self._giving_way)

    @property
    def at_open_gates(self) -> list[Sleeper]:
        """Those whose gate was opened."""
        return [sleeper for gate, there in self._at_gates.items() if gate.is_open for sleeper in there]

    def waiting_for(self, handles: Iterable[RequestHandle]) -> list[Sleeper]:
        """Those who wait for one of these requests."""
        return [sleeper for handle in handles for sleeper in self._by_request.get(handle.request_id, ())]

    def add(self, sleeper: Sleeper, sleep: Sleep) -> None:
        """Somebody goes to sleep."""
        self._sleeps[sleeper] = sleep
        for handle in sleep.handles:
            waiting = self._by_request.setdefault(handle.request_id, {})
            if not waiting:
                self._engine.watch(handle)
            waiting[sleeper] = None
        if sleep.gate is not None:
            self._at_gates.setdefault(sleep.gate, {})[sleeper] = None
        if sleep.gives_way:
            self._giving_way[sleeper] = None

    def remove(self, sleeper: Sleeper) -> None:
        """Somebody sleeps no more, if it did."""
        sleep = self._sleeps.pop(sleeper, None)
        if sleep is None:
            return
        for handle in sleep.handles:
            waiting = self._by_request[handle.request_id]
            waiting.pop(sleeper, None)
            if not waiting:
                del self._by_request[handle.request_id]
                self._engine.unwatch(handle)
        if sleep.gate is not None:
            self._leave(sleep.gate, sleeper)
        self._giving_way.pop(sleeper, None)

    def remove_ranks(self) -> None:
        """No rank sleeps any more."""
        for sleeper in [each for each in self._sleeps if each is not None]:
            self.remove(sleeper)

    def _leave(self, gate: Gate, sleeper: Sleeper) -> None:
        there = self._at_gates[gate]
        there.pop(sleeper, None)
        if not there:
            del self._at_gates[gate]
