"""The work of a host library's compiler in a run: graphs, their launches, and code that it did not compile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from kernbench.common.figures import figure
from kernbench.common.values import state, value


@value
class CompiledGraphs:
    """The graphs of a run that a compiler has compiled, and their launches.

    ``generated``: launches of kernels that the compiler has written; ``own``: launches of the machine's kernels in
    these graphs. ``breaks``: the line and the reason of each break between graphs. ``eager``: the code that was not
    compiled, and why.
    """

    graphs: int = figure("compiled graphs", column=False)
    generated: int = figure("launches of generated kernels", column=False)
    own: int = figure("launches of the machine's kernels in compiled graphs", column=False)
    breaks: tuple[str, ...] = figure("line and reason of each break between graphs", column=False, default=())
    eager: tuple[str, ...] = figure("what ran eagerly, and why", column=False, default=())

    def lines(self) -> Iterator[str]:
        """Yield the lines of a report."""
        plural = "" if self.graphs == 1 else "s"
        yield (
            f"torch.compile: {self.graphs} graph{plural}; {self.generated:,} launches of generated kernels, "
            f"{self.own:,} of the machine's own"
        )
        if not self.graphs:
            yield (
                "torch.compile: no graph was compiled: PyTorch compiles no forward of its own modules, such as "
                "nn.Sequential, behind a break; compile the module inside"
            )
        yield from (f"torch.compile: graph break at {text}" for text in self.breaks)
        yield from (f"torch.compile: ran eagerly: {text}" for text in self.eager)


@state
class CompilerTally:
    """The counts of a run for its `CompiledGraphs`. ``is_used``: the program has called the compiler."""

    is_used: bool = False
    graphs: int = 0
    generated: int = 0
    own: int = 0
    breaks: dict[str, None] = field(default_factory=dict)
    eager: dict[str, None] = field(default_factory=dict)

    def note_break(self, place: str, reason: str) -> None:
        """Note that a graph ends at ``place``."""
        self.breaks.setdefault(f"{place}: {reason}")

    def note_eager(self, place: str, reason: str) -> None:
        """Note that the code at ``place`` is not compiled."""
        self.eager.setdefault(f"{place}: {reason}")

    def report(self) -> CompiledGraphs | None:
        """Return the figures of a run; None if it did not use the compiler."""
        if not self.is_used:
            return None
        return CompiledGraphs(self.graphs, self.generated, self.own, tuple(self.breaks), tuple(self.eager))
