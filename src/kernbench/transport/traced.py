"""What is kept of transfers that are traced, and of links: plain figures."""

from __future__ import annotations

from typing import NamedTuple

from kernbench.common.values import value


class LinkUse(NamedTuple):
    """What a link has carried, how long that took it, and the most bytes its FIFO had to hold."""

    nbytes: int
    busy_ps: int
    peak: int


@value
class Hop:
    """A transfer on one link: its first byte entered at ``start_ps``, its last byte left at ``tail_ps``."""

    src: str
    dst: str
    start_ps: int
    tail_ps: int


class HopTimes:
    """Per link of a traced transfer: when its first packet was granted and when its last byte had left."""

    __slots__ = ("starts", "tails")

    def __init__(self, n_links: int) -> None:
        self.starts = [-1] * n_links
        self.tails = [-1] * n_links

    def resize(self, n_links: int) -> None:
        """From where its head is now, the transfer takes another way: ``n_links`` in all."""
        self.starts = [*self.starts, *[-1] * n_links][:n_links]
        self.tails = [*self.tails, *[-1] * n_links][:n_links]
