"""Rates that change with time: the rate of a node's links, and the time that a packet needs to pass such a link."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from kernbench.common.errors import TransportError
from kernbench.common.units import PS_PER_NS
from kernbench.core.clock import NEVER
from kernbench.transport.state import Link

MOST_STRETCHES = 100_000
"""A packet that needs this number of rates to pass a link is an error, so that an endless rate of 0 is detected"""


class RateStretch(NamedTuple):
    """A rate of ``gbs`` (GB/s) up to ``until_ps``."""

    gbs: float
    until_ps: int


class VaryingRate:
    """The rate of each link out of a node, as a function of time.

    ``ask(now_ps)`` returns the rate from ``now_ps`` on. It is called only for times that no earlier answer covers, so
    only once for all links of the node, and with increasing times.
    """

    __slots__ = ("_ask", "_stretches")

    def __init__(self, ask: Callable[[int], RateStretch]) -> None:
        self._ask = ask
        self._stretches: deque[RateStretch] = deque()

    def end_ps(self, nbytes: int, start_ps: int, most_gbs: float) -> int:
        """Return the time at which ``nbytes`` that start at ``start_ps`` have passed a link of at most ``most_gbs``.

        ``start_ps`` never decreases between calls. Raises TransportError if the rate is 0 for ever.
        """
        stretches = self._stretches
        while stretches and stretches[0].until_ps <= start_ps:
            stretches.popleft()
        left, at = float(nbytes), start_ps
        for index in range(MOST_STRETCHES):
            if index == len(stretches):
                stretches.append(self._ask_at(at))
            gbs, until_ps = stretches[index]
            gbs = min(gbs, most_gbs)
            if gbs:
                duration_ps = at - start_ps + left * PS_PER_NS / gbs
                if start_ps + duration_ps <= until_ps:
                    return start_ps + max(1, round(duration_ps))
                left -= (until_ps - at) * gbs / PS_PER_NS
            elif until_ps >= NEVER:
                raise TransportError(f"{nbytes} bytes never pass: the rate is 0 GB/s for ever")
            at = until_ps
        raise TransportError(f"{nbytes} bytes do not pass: the rate changed {MOST_STRETCHES:,} times in a row")

    def _ask_at(self, now_ps: int) -> RateStretch:
        stretch = self._ask(now_ps)
        if stretch.until_ps <= now_ps:
            raise TransportError(f"the rate at {now_ps} ps ends at {stretch.until_ps} ps, must end later")
        return stretch


class PacedLink(Link):
    """A link out of a node with a varying rate. The link's bandwidth bounds the rate, and all transfers use packets."""

    __slots__ = ("rate",)

    rate: VaryingRate

    def occupy_ps(self, nbytes: int) -> int:
        """Return the time in ps that a packet granted now occupies the link.

        If the call for the rate raises an error, the packet passes at the link's bandwidth.
        """
        now = self.clock.time
        try:
            return self.rate.end_ps(nbytes, now, self.bw_gbs) - now
        except Exception as error:  # raised by a separate event, so that the packet blocks no other
            self.clock.call_at(now, _fail, error)
            return self.figures.serialise_ps(nbytes)

    def serialise_ps(self, nbytes: int) -> int:
        """Return the time in ps of a packet at the link's bandwidth: the lower bound."""
        return self.figures.serialise_ps(nbytes)


def _fail(error: Exception) -> NoReturn:
    raise error
