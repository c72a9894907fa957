"""Select the tracks of a trace by globs on nodes and on kinds of tracks."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from kernbench.common.errors import InputError
from kernbench.common.values import value

ENGINE_KINDS = {
    "DMA in": "dma_in",
    "DMA out": "dma_out",
    "fetch": "fetch",
    "GEMM": "gemm",
    "MATH": "math",
    "store": "store",
    "ipcq": "ipcq",
    "other": "other",
    "scheduler": "scheduler",
}
"""The kind of track of each engine of a PE"""
HOST, CONTROL, CPU, WAITS, MEMORY, LINKS, PES = "host", "control", "cpu", "waits", "memory", "links", "pes"
POWER = "power"
KINDS = (HOST, CONTROL, PES, CPU, WAITS, *ENGINE_KINDS.values(), MEMORY, LINKS, POWER)


@value
class TraceFilter:
    """Globs on tracks: a track matches one of ``wanted``, unless that is empty, and none of ``unwanted``."""

    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()

    def keeps(self, kinds: tuple[str, ...], nodes: tuple[str, ...]) -> bool:
        """Return True if a track of these kinds, about these nodes, is selected."""
        wanted = not self.wanted or _match(self.wanted, kinds, nodes)
        return wanted and not _match(self.unwanted, kinds, nodes)

    def may_keep(self, kind: str) -> bool:
        """Return True if tracks of this kind can be selected; otherwise the run need not observe their events."""
        wanted = not self.wanted or any(fnmatchcase(kind, glob) or glob not in KINDS for glob in self.wanted)
        return wanted and not _match(self.unwanted, (kind,), ())


EVERYTHING = TraceFilter()
"""A filter that selects all tracks"""


def parse_filter(text: str, nodes: Iterable[str]) -> TraceFilter:
    """Return the filter for ``text``: globs separated by commas, with ``!`` before a glob to exclude.

    A glob matches kinds of track and nodes of the machine. Raises InputError for an empty glob, and for one without a
    match.
    """
    names = (*KINDS, *nodes)
    terms = [term.strip() for term in text.split(",")]
    for term in terms:
        glob = term.removeprefix("!")
        if not any(fnmatchcase(name, glob) for name in names):
            problem = f"{glob!r} matches no part of the machine" if glob else "an empty glob"
            raise InputError(
                f"--trace-filter {text!r}: {problem}; write names of parts (sip0.cube0.*) or kinds of track: "
                f"{', '.join(KINDS)}; !glob leaves out"
            )
    return TraceFilter(
        tuple(term for term in terms if not term.startswith("!")),
        tuple(term.removeprefix("!") for term in terms if term.startswith("!")),
    )


def _match(globs: Iterable[str], kinds: tuple[str, ...], nodes: tuple[str, ...]) -> bool:
    """Return True if a glob matches a kind or a node.

    The name of a kind matches that kind only, for example ``host``, which is also a node.
    """
    return any(fnmatchcase(name, glob) for glob in globs for name in (kinds if glob in KINDS else (*kinds, *nodes)))
