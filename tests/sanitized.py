"""An engine that is watched by the sanitizer."""

from __future__ import annotations

from kernbench.engine.engine import GraphEngine
from kernbench.observe.sanitizer import Finding, Sanitizer
from kernbench.topology.builder import Topology


class SanitizedEngine(GraphEngine):
    """Finds what is wrong with its run."""

    def __init__(self, topology: Topology) -> None:
        self.sanitizer = Sanitizer()
        super().__init__(topology, observers=(self.sanitizer,))

    def findings(self) -> tuple[Finding, ...]:
        """What has been found by now."""
        return self.sanitizer.findings(self)
