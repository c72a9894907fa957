"""Parameters of the collective evaluation: SIP fabrics, algorithms and sizes, and the machines for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from kernbench.ccl.config import QueueSettings
from kernbench.common.config import Document, apply_overrides
from kernbench.common.values import value
from kernbench.evaluation.ccl_ways import QueueFigures
from kernbench.topology.builder import Topology, compile_topology
from kernbench.topology.spec import TWO_DIMENSIONAL, SipTopology, TopologySpec

AlgorithmName: TypeAlias = Literal["intercube_allreduce", "sip_allreduce"]
INTERCUBE: AlgorithmName = "intercube_allreduce"
OVER_SIPS: AlgorithmName = "sip_allreduce"
ALGORITHMS: tuple[AlgorithmName, ...] = (INTERCUBE, OVER_SIPS)

DTYPE = "f32"
ITEM_BYTES = 4
KIB = 1 << 10
SIZES = (256, 1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB)
"""Sizes of a contribution in bytes. A contribution is a row of a cube, or the tensor of a rank."""
FULL_SIZES = (*SIZES, 256 * KIB, 1024 * KIB)

TITLES = {
    "ring_1d": "ring",
    "ring_1d_unidir": "one-way ring",
    "torus_2d": "torus",
    "mesh_2d_no_wrap": "mesh",
    "fully_connected": "all to all",
    "switch": "switch",
}


@value
class Fabric:
    """A number of SIPs joined in one topology, in ``w`` columns and ``h`` rows."""

    kind: SipTopology
    sips: int
    w: int
    h: int

    @property
    def family(self) -> str:
        """The family of the fabric, such as ``torus``."""
        return TITLES[self.kind]

    @property
    def title(self) -> str:
        """The title, such as ``torus 3×2`` or ``ring of 6``."""
        return f"{self.family} {self.w}×{self.h}" if self.two_dimensional else f"{self.family} of {self.sips}"

    @property
    def two_dimensional(self) -> bool:
        """True if the SIPs form rows and columns."""
        return self.kind in TWO_DIMENSIONAL


def ring_of(sips: int) -> Fabric:
    """Return a ring of ``sips`` SIPs."""
    return Fabric("ring_1d", sips, sips, 1)


def fabric_of(spec: TopologySpec) -> Fabric:
    """Return the fabric in which a machine joins its SIPs."""
    sips = spec.system.sips
    return Fabric(sips.topology, sips.count, sips.grid.w, sips.grid.h)


def fabrics() -> tuple[Fabric, ...]:
    """Return rings, tori and meshes of 2, 4 and 6 SIPs; six SIPs form three columns and two rows."""
    grids = ((2, 1), (2, 2), (3, 2))
    rings = [ring_of(w * h) for w, h in grids]
    tori = [Fabric("torus_2d", w * h, w, h) for w, h in grids]
    return (*rings, *tori, *(Fabric("mesh_2d_no_wrap", torus.sips, torus.w, torus.h) for torus in tori))


def document_of(topology: Topology) -> Document:
    """Return a machine as a document for another process, with ``refresh: spread`` in place of all-bank.

    With all-bank refresh, the time of a launch depends on the refresh outages that fall into it. Launches would not
    be comparable, and would have no closed form.
    """
    data = topology.spec.model_dump(mode="json")
    if topology.spec.cube.hbm.banks is not None and topology.spec.cube.hbm.refresh_mode == "all-bank":
        data["cube"]["hbm"]["refresh"] = "spread"
    return Document("the machine of the evaluation", data, {})


def join_sips(machine: Document, fabric: Fabric, *changes: str) -> Topology:
    """Return a machine with its SIPs joined as ``fabric``, and with ``changes`` as ``--set`` texts."""
    sips = {"count": fabric.sips, "topology": fabric.kind, "w": "null", "h": "null"}
    sips |= {"w": fabric.w, "h": fabric.h} if fabric.two_dimensional else {}
    return compile_topology(
        apply_overrides(machine, [*(f"system.sips.{key}={value}" for key, value in sips.items()), *changes])
    )


def queues_of(settings: QueueSettings) -> QueueFigures:
    """Return the parameters of installed queues that the closed forms need."""
    return QueueFigures(settings.n_slots, settings.slot_size, settings.ipcq_credit_size_bytes)


def in_order(sizes: Iterable[int]) -> tuple[int, ...]:
    """Return distinct sizes in ascending order."""
    return tuple(sorted(set(sizes)))
