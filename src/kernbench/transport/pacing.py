"""Rates that change with time: what a node says of its links, and when a packet has passed one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from kernbench.common.errors import TransportError
from kernbench.common.units import PS_PER_NS
from kernbench.core.clock import NEVER
from kernbench.transport.state import Link

MOST_STRETCHES = 100_000
"""Of rates that a packet meets on one link: a rate of 0 that never ends is found out"""


class RateStretch(NamedTuple):
    """``gbs`` up to ``until_ps``."""

    gbs: float
    until_ps: int


class VaryingRate:
    """The rate of all links out of a node, each alone, as a function of time.

    ``ask(now_ps)`` returns the rate from then on. It is asked for a time that no earlier answer covers, so once for all
    links; times asked for only grow.
    """

    __slots__ = ("_ask", "_known")

    def __init__(self, ask: Callable[[int], RateStretch]) -> None:
        self._ask = ask
        self._known: deque[RateStretch] = deque()

    def end_ps(self, nbytes: int, start_ps: int, most_gbs: float) -> int:
        """Return when ``nbytes`` that begin at ``start_ps`` have passed a link that carries ``most_gbs`` at most.

        Begins come in the order of time. TransportError when the rate is 0 for ever.
        """
        known = self._known
        while known and known[0].until_ps <= start_ps:
            known.popleft()
        left, at = float(nbytes), start_ps
        for turn in range(MOST_STRETCHES):
            if turn == len(known):
                known.append(self._ask_at(at))
            gbs, until_ps = known[turn]
            gbs = min(gbs, most_gbs)
            if gbs:
                took = at - start_ps + left * PS_PER_NS / gbs
                if start_ps + took <= until_ps:
                    return start_ps + max(1, round(took))
                left -= (until_ps - at) * gbs / PS_PER_NS
            elif until_ps >= NEVER:
                raise TransportError(f"{nbytes} bytes never pass: the rate is 0 GB/s for ever")
            at = until_ps
        raise TransportError(f"{nbytes} bytes do not pass: the rate was asked for {MOST_STRETCHES:,} times in a row")

    def _ask_at(self, now_ps: int) -> RateStretch:
        found = self._ask(now_ps)
        if found.until_ps <= now_ps:
            raise TransportError(f"a rate that ends at {found.until_ps} ps, asked for at {now_ps} ps, has no time")
        return found


class PacedLink(Link):
    """A link out of a node whose rate changes: it goes by packets, and its own bandwidth bounds the rate."""

    __slots__ = ("rate",)

    rate: VaryingRate

    def occupy_ps(self, nbytes: int) -> int:
        """Return how long a packet granted now takes. Where the rate cannot be had, the packet passes all the same."""
        now = self.clock.time
        try:
            return self.rate.end_ps(nbytes, now, self.bw_gbs) - now
        except Exception as error:  # raised as an event of its own: nothing may be stuck behind the packet
            self.clock.call_at(now, _fail, error)
            return self.figures.serialise_ps(nbytes)

    def serialise_ps(self, nbytes: int) -> int:
        """Return the time of a packet at the link's own bandwidth, which is the least."""
        return self.figures.serialise_ps(nbytes)


def _fail(error: Exception) -> NoReturn:
    raise error
