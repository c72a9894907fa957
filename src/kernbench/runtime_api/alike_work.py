"""Find the work that ranks do alike: launches of equal programs on equal values. More ranks do not divide it.

Each storage of a front end has a number that stands for its values: storages of two ranks with one number have equal
values. The number of values follows from where they come from:

- bytes of the host: their content;
- results of a launch: the program and the numbers of its operands;
- results of a collective: the call, and also the rank if the ranks receive different values;
- anything else, such as memory that nothing has written: a number of its own.

Equal values that come about in different ways have different numbers, so the work that is found is a lower bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from hashlib import blake2b
from itertools import count

from kernbench.common.dtypes import Array
from kernbench.common.figures import figure
from kernbench.common.units import format_ns, ps_to_ns
from kernbench.common.values import state, value
from kernbench.engine.requests import RequestHandle
from kernbench.runtime_api.arrays import as_bytes
from kernbench.runtime_api.layout import TensorKey

_COMMON = ("all_reduce", "all_gather", "broadcast")
"""Collectives that leave the same values on all ranks"""
_FRESH = 0
_MOST_NAMED = 4


@value(kw_only=True)
class AlikeUse:
    """The launches of an operator that at least two ranks made on equal values."""

    name: str = figure("the operator")
    launches: int = figure("its launches that ranks made alike, over all ranks")
    ns: float = figure("their time on a rank, the mean over ranks, in ns")


@value(kw_only=True)
class ScalingReport:
    """The part of the time that does not shrink with more ranks, by what a run knows.

    Shares are those of a rank's time, the means over ranks.
    """

    ranks: int = figure("ranks of the program")
    alike_share: float = figure("launches that at least two ranks made on equal values, as a share of the time")
    collective_share: float = figure("collectives beside no kernel of their rank, as a share of the time")
    alike: tuple[AlikeUse, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if all time that is known to be divided is divided."""
        return not self.alike and not self.collective_share

    def __str__(self) -> str:
        named = [f"{use.name} {format_ns(use.ns)}" for use in self.alike[:_MOST_NAMED]]
        more = ["…"] if len(self.alike) > _MOST_NAMED else []
        listed = f" ({', '.join([*named, *more])})" if named else ""
        return (
            f"does not shrink with more ranks: {self.alike_share:.1%} of the time is work that ranks do alike{listed}; "
            f"collectives beside no kernel {self.collective_share:.1%}"
        )


@value
class _Launched:
    """A launch of a rank. ``name``: its operator."""

    rank: int
    name: str
    handle: RequestHandle


@state
class AlikeWork:
    """The numbers of the values in storages, and the launches of all ranks by the number of what they computed.

    ``n_ranks``: the ranks that have launched work.
    """

    n_ranks: int = 0
    _numbers: dict[TensorKey, int] = field(default_factory=dict)
    _launches: dict[int, list[_Launched]] = field(default_factory=dict)
    _calls: Counter[Hashable] = field(default_factory=Counter)
    _own: Callable[[], int] = field(default_factory=lambda: count(1).__next__)

    def note_fresh(self, key: TensorKey) -> None:
        """Note memory that was taken and has no values yet."""
        self._numbers[key] = _FRESH

    def note_unknown(self, key: TensorKey) -> None:
        """Note values of unknown origin."""
        self._numbers[key] = hash(("own", self._own()))

    def note_bytes(self, key: TensorKey, first: int, content: Array, *, is_whole: bool) -> None:
        """Note bytes that the host copies to a storage, from element ``first`` on."""
        digest = blake2b(as_bytes(content).data, digest_size=8).digest()
        before = _FRESH if is_whole else self._number_of(key)
        self._numbers[key] = hash(("bytes", before, first, digest))

    def note_launch(
        self,
        launched: tuple[int, str, RequestHandle],
        program: Hashable | None,
        operands: Sequence[TensorKey],
        written: Collection[TensorKey],
    ) -> None:
        """Note a launch, as (rank, operator, handle), of ``program`` on ``operands``; None: it equals no other.

        Results in memory that nothing has written do not depend on its contents.
        """
        for key in operands:
            if key not in written and self._number_of(key) == _FRESH:
                self.note_unknown(key)
        numbers = tuple([self._number_of(key) for key in operands])
        number = hash(("own", self._own()) if program is None else (program, numbers))
        self._launches.setdefault(number, []).append(_Launched(*launched))
        self.n_ranks = max(self.n_ranks, launched[0] + 1)
        for at, key in enumerate(dict.fromkeys(operands)):
            if key in written:
                self._numbers[key] = hash((number, at))

    def note_collective(self, name: str, place: Hashable, rank: int, written: Iterable[tuple[TensorKey, bool]]) -> None:
        """Note the results of a collective of ``rank``. ``place``: its group, in which ranks call in the same order.

        ``written``: its results, and whether they are complete storages.
        """
        number = self._calls[place, rank]
        self._calls[place, rank] += 1
        whose = None if name in _COMMON else rank
        for at, (key, is_whole) in enumerate(written):
            before = _FRESH if is_whole else self._number_of(key)
            self._numbers[key] = hash((name, place, number, whose, at, before))

    def _number_of(self, key: TensorKey) -> int:
        if key not in self._numbers:
            self.note_unknown(key)
        return self._numbers[key]

    def report(
        self, on_device: Mapping[int, tuple[int, int]], zero_ps: int, run_ps: int, exposed_ps: int
    ) -> ScalingReport:
        """Return the report of a run of ``run_ps`` from ``zero_ps`` on. ``on_device``: times of launches on their SIPs.

        ``exposed_ps``: the time of collectives beside no kernel, over all ranks.
        """
        times: Counter[str] = Counter()
        launches: Counter[str] = Counter()
        for alike in self._launches.values():
            timed = [launched for launched in alike if on_device.get(launched.handle.request_id, (-1, 0))[0] >= zero_ps]
            if len({launched.rank for launched in timed}) > 1:
                for launched in timed:
                    begin_ps, end_ps = on_device[launched.handle.request_id]
                    times[launched.name] += end_ps - begin_ps
                    launches[launched.name] += 1
        n_ranks = self.n_ranks
        whole_ps = run_ps * n_ranks
        return ScalingReport(
            ranks=n_ranks,
            alike_share=times.total() / whole_ps if whole_ps else 0.0,
            collective_share=exposed_ps / whole_ps if whole_ps else 0.0,
            alike=tuple(
                [
                    AlikeUse(name=name, launches=launches[name], ns=ps_to_ns(ps) / n_ranks)
                    for name, ps in sorted(times.items(), key=lambda entry: (-entry[1], entry[0]))
                ]
            ),
        )
