"""Choose the tracks a trace keeps: globs on the nodes and kinds of tracks."""

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
"""The kind of track that an engine of a PE has."""
HOST, CONTROL, CPU, WAITS, MEMORY, LINKS, PES = "host", "control", "cpu", "waits", "memory", "links", "pes"
KINDS = (HOST, CONTROL, PES, CPU, WAITS, *ENGINE_KINDS.values(), MEMORY, LINKS)


@value
class TraceFilter:
    """Globs, of which a track has to match one of ``wanted`` (if there are any) and none of ``unwanted``."""

    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()

    def keeps(self, kinds: tuple[str, ...], nodes: tuple[str, ...]) -> bool:
        """Tell whether a track of these kinds, about these nodes, is kept."""
        wanted = not self.wanted or _match(self.wanted, kinds, nodes)
        return wanted and not _match(self.unwanted, kinds, nodes)

    def may_keep(self, kind: str) -> bool:
        """Tell whether tracks of this kind can be kept: if not, there is no need to observe what they show."""
        wanted = not self.wanted or any(fnmatchcase(kind, glob) or glob not in KINDS for glob in self.wanted)
        return wanted and not _match(self.unwanted, (kind,), ())


EVERYTHING = TraceFilter()
"""Keeps all tracks."""


def parse_filter(text: str, nodes: Iterable[str]) -> TraceFilter:
    """The filter that ``text`` says: globs with commas between, ``!`` before what is left out.

    A glob stands for kinds of track and for nodes of the machine. InputError for one that is empty or matches neither.
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
    """Tell whether a glob matches a kind or a node; the name of a kind means that (``host`` is a part as well)."""
    return any(fnmatchcase(name, glob) for glob in globs for name in (kinds if glob in KINDS else (*kinds, *nodes)))
