"""The rows of a run by kind, and what needs are made of."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

from kernbench.core.log import END, KIND, WIDTH, By, Kind, Row
from kernbench.transport import Transfer
from needs_of.recorded import NeedsEngine


class Need(NamedTuple):
    """Something is there at ``at``, because of ``row``."""

    at: int
    row: Row
    by: By


Needs = list[Need]


def last(needs: Iterable[Need]) -> Needs:
    """Those that came last."""
    found = list(needs)
    latest = max((each.at for each in found), default=0)
    return [each for each in found if each.at == latest]


def relabelled(by: By, needs: Iterable[Need]) -> Needs:
    """The same, for another reason."""
    return [each._replace(by=by) for each in needs]


def _at(need: Need) -> int:
    return need.at


class Run:
    """What was noted of a run, its rows, and their ``needs`` as far as they have been worked out."""

    def __init__(self, engine: NeedsEngine) -> None:
        self.engine = engine
        self.machine = engine.machine
        self.log = engine.machine.log
        self.rows = engine.machine.log.rows
        self.needs: dict[Row, Needs] = {}
        self.all = range(0, len(self.rows), WIDTH)
        self.of_kind: dict[Kind, list[Row]] = {kind: [] for kind in Kind}
        for row in self.all:
            self.of_kind[Kind(self.rows[row + KIND])].append(row)
        self.control: list[tuple[Transfer, Any]] = [(each, each.arg) for each in engine.sent if each.row >= 0]
        self.control_of: dict[tuple[type, int], list[Transfer]] = {}
        for transfer, message in self.control:
            self.control_of.setdefault((type(message), message.request_id), []).append(transfer)

    def ended(self, row: Row, by: By) -> Need:
        """The end of a row."""
        return Need(self.rows[row + END], row, by)

    def after(self, rows: Iterable[Row], by: By = By.ORDER) -> Needs:
        return [self.ended(each, by) for each in rows]

    def nth(self, given: Iterable[Need], number: int) -> Needs:
        """The need that comes as number ``number`` in time, with those at the same instant; none for a negative one."""
        return self.of_instant(sorted(given), number)

    @staticmethod
    def of_instant(given: Needs, number: int) -> Needs:
        """As ``nth``, of what is sorted."""
        if number < 0:
            return []
        at = given[number].at
        return given[bisect_left(given, at, key=_at) : bisect_right(given, at, key=_at)]

    def host(self, request_id: int) -> Needs:
        """What the host had waited for when it submitted a request."""
        waited = self.engine.waited[request_id]
        return [] if waited is None else [self.ended(self.log.requests[waited.request_id], By.HOST)]

    def sent(self, kind: type, request_id: int, *, src: str = "", dst: str = "") -> list[Row]:
        """The messages of a kind, for a request, from a part or to one."""
        return [
            transfer.row
            for transfer in self.control_of.get((kind, request_id), ())
            if src in ("", transfer.port.name) and dst in ("", transfer.route.links[-1].dst)
        ]
