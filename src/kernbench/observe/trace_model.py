"""Model of a timeline: groups of tracks, tracks, spans, and arrows."""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from kernbench.common.values import state, value

Fact: TypeAlias = tuple[str, str | int]
"""A property of a span beside its name: a word and its value"""


@value(order=True)
class TrackGroup:
    """A group of tracks: the host, a SIP, a cube, a PE (``group`` 0, by coordinates), the memories, the links."""

    name: str
    group: int = 0
    at: tuple[int, ...] = (-1, -1, -1)


@value
class Track:
    """A track of a group; ``order`` counts tracks from the top, ``shown`` is False if a filter hides it."""

    place: TrackGroup
    row: str
    order: int
    shown: bool


@state(eq=False)
class TrackSpan:
    """An interval on ``track``; ``lane`` is its lane on a track with overlapping spans."""

    name: str
    start_ps: int
    end_ps: int
    facts: tuple[Fact, ...] = ()
    track: Track | None = None
    lane: int = 0


@value
class MessageArrow:
    """A message that leaves within the span ``src`` at ``leaves_ps`` and arrives in ``dst`` at ``arrives_ps``."""

    name: str
    src: TrackSpan
    leaves_ps: int
    dst: TrackSpan
    arrives_ps: int


@value
class Counter:
    """A number over time: ``samples`` are pairs (time in ps, number in ``unit``), each valid until the next."""

    name: str
    unit: str
    samples: tuple[tuple[int, float], ...]


@state
class Trace:
    """A timeline: spans on tracks, arrows between them, and counters."""

    spans: list[TrackSpan] = field(default_factory=list)
    flows: list[MessageArrow] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)

    def tracks(self) -> list[tuple[Track, list[TrackSpan]]]:
        """Return each track with its spans in the order of their starts; tracks by group, then from top to bottom."""
        by_track: dict[Track, list[TrackSpan]] = {}
        for span in self.spans:
            if span.track is not None:
                by_track.setdefault(span.track, []).append(span)
        for spans in by_track.values():
            spans.sort(key=lambda span: (span.start_ps, span.end_ps))
        return sorted(by_track.items(), key=lambda item: _order(item[0]))

    def assign_lanes(self) -> None:
        """Assign overlapping spans of a track to different lanes, to the fewest possible."""
        for _, spans in self.tracks():
            ends: list[int] = []
            for span in spans:
                span.lane = next((at for at, end in enumerate(ends) if end <= span.start_ps), len(ends))
                ends[span.lane : span.lane + 1] = [span.end_ps]


def _order(track: Track) -> tuple[int, tuple[int, ...], str, int, str]:
    place = track.place
    return place.group, place.at, place.name, track.order, track.row
