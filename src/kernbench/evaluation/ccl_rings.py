"""Simulations of rings, and of messages between the PEs of a cube by memory of their queues.

A ring performs reduce-scatter and all-gather on one PE per SIP. Its time is compared with the theory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kernbench.ccl.config import CclConfig
from kernbench.ccl.install import IpcqPlan, find_algorithm
from kernbench.ccl.loading import load_algorithm
from kernbench.common.collector import patient_collector
from kernbench.common.config import Document, Path, path_text
from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.evaluation.ccl_fabrics import DTYPE, ITEM_BYTES, KIB, join_sips, queues_of, ring_of
from kernbench.evaluation.ccl_results import BufferPoint, RingPoint
from kernbench.evaluation.ccl_theory import ClosedForms
from kernbench.messages.requests import BufferKind
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import NoParams, RuntimeContext
from kernbench.runtime_api.launch_report import launches_of
from kernbench.topology.spec import PACKETS_PER_FIFO

KINDS: tuple[BufferKind, ...] = ("tcm", "sram", "hbm")
MESSAGE_SIZES = (64, 256, 1024, 4096)
NAME = "pass on"


def pass_on(t_ptr: int, n: int, senders: int, dtype: str, *, tl: Any) -> None:
    """Send ``n`` elements from each of the first ``senders`` PEs of a ring to the next PE, which adds its elements."""
    here, pes = tl.program_id(0), tl.num_programs(0)
    at = t_ptr + here * n * tl.itemsize(dtype)
    block = tl.load(at, n, dtype)
    tl.wait(block)
    if here < senders:
        tl.send("E", block)
    if (here - 1) % pes < senders:
        tl.store(at, block + tl.recv("W", n, dtype))


@value(kw_only=True)
class BufferRun:
    """One simulation: messages between the PEs of a cube of ``machine``, with ring buffers in one type of memory."""

    machine: Document
    ccl: CclConfig
    buffer_kind: BufferKind
    sizes: tuple[int, ...] = MESSAGE_SIZES

    def run(self) -> list[BufferPoint]:
        """Simulate one sender, then all PEs as senders. Values are computed."""
        engine = GraphEngine(join_sips(self.machine, ring_of(1)))
        pes = engine.spec.pes_per_cube
        points = []
        with RuntimeContext[NoParams](engine, ccl=self.ccl) as torch:
            torch.install_ipcq(f"ring_allreduce_{self.buffer_kind}", pes)
            for senders in dict.fromkeys((1, pes)):
                points += [self._point(torch, engine, senders, nbytes) for nbytes in self.sizes]
        return points

    def _point(self, torch: RuntimeContext[Any], engine: GraphEngine, senders: int, nbytes: int) -> BufferPoint:
        n, pes = nbytes // ITEM_BYTES, engine.spec.pes_per_cube
        data = np.arange(pes * n, dtype=np.float32).reshape(pes, n)
        tensor = torch.tensor(data, dtype=DTYPE, dp=DPPolicy(pe="row_wise", num_cubes=1))
        first = len(engine.op_log)
        torch.launch(NAME, pass_on, tensor, n, senders, DTYPE)
        records = [record for record in engine.op_log if record.seq >= first and record.kind in ("ipcq_copy", "math")]
        sent = min(record.t_start_ps for record in records if record.kind == "ipcq_copy")
        added = max(record.t_end_ps for record in records if record.kind == "math")
        expected = data + np.where((np.arange(pes)[:, None] - 1) % pes < senders, np.roll(data, 1, axis=0), 0)
        right = int(np.all(tensor.numpy() == expected, axis=1).sum()) - (pes - senders)
        tensor.free()
        return BufferPoint(
            buffer_kind=self.buffer_kind,
            senders=senders,
            nbytes=nbytes,
            latency_ns=ps_to_ns(added - sent),
            right=right,
        )


def least_slot(ccl: CclConfig) -> int:
    """Return the largest message that fits the queues of all kinds."""
    return min(find_algorithm(f"ring_allreduce_{kind}", None, ccl).config.slot_size for kind in KINDS)


RING = "ring_allreduce_rs_ag"
RANKS = (2, 4, 8, 16)
MIB = 1 << 20
LARGE_SLOT = 64 * KIB
RING_SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1 * MIB, 4 * MIB, 16 * MIB)
SMALL_SLOT_SIZES = tuple(size for size in RING_SIZES if size <= 256 * KIB)
"""Sizes that are also simulated with default slots, where the cost of credits is visible"""
BULK_BYTES = 4096
"""Packet size of these simulations: it needs a quarter of the events, and changes times by at most 0.1 %"""

LINK_SECTIONS: tuple[Path, ...] = (("system", "links"), ("sip", "links"), ("cube", "links"))


@value(kw_only=True)
class RingRun:
    """One timing-only simulation of a ring for some sizes, on PE 0 of cube 0 of ``ranks`` SIPs."""

    machine: Document
    ccl: CclConfig
    ranks: int
    sizes: tuple[int, ...]

    def run(self) -> list[RingPoint]:
        """Simulate one size after another."""
        topology = join_sips(self.machine, ring_of(self.ranks), *_bulk_packets(self.machine))
        engine = GraphEngine(topology, enable_data=False)
        with patient_collector(), RuntimeContext[NoParams](engine, ccl=self.ccl) as torch:
            plan = torch.install_ipcq(RING)
            return [self._point(torch, engine, plan, nbytes) for nbytes in self.sizes]

    def _point(self, torch: RuntimeContext[Any], engine: GraphEngine, plan: IpcqPlan, nbytes: int) -> RingPoint:
        tensors = []
        for sip in range(self.ranks):
            torch.ahbm.set_device(sip)
            tensors.append(torch.empty(nbytes // ITEM_BYTES, dtype=DTYPE))
        algorithm = load_algorithm(plan.config)
        args = algorithm.args_for(engine.spec, n_elem=nbytes // ITEM_BYTES, dtype=DTYPE)
        torch.launch(RING, algorithm.kernel, tensors, *args)
        reports = [
            report
            for launch in launches_of(engine.handles)[-self.ranks :]
            if launch.outcome is not None
            for report in launch.outcome.reports
        ]
        for tensor in tensors:
            tensor.free()
        forms = ClosedForms(engine.machine, queues_of(plan.queues.settings))
        ring = forms.sip_round()
        return RingPoint(
            ranks=self.ranks,
            nbytes=nbytes,
            slot_size=plan.config.slot_size,
            n_slots=plan.config.n_slots,
            packet_bytes=engine.spec.transport.packet_bytes,
            hop_ns=ring.step.latency_ns,
            bw_gbs=ring.step.bw_gbs,
            kernel_ns=ps_to_ns(max(report.end_ps for report in reports) - min(report.start_ps for report in reports)),
            theory=forms.ring(self.ranks, nbytes, ring),
        )


def _bulk_packets(machine: Document) -> Iterator[str]:
    """Yield settings that enlarge the packets of a machine, and its FIFOs of fixed size."""
    links = ((*section, name) for section in LINK_SECTIONS for name in machine.get(section))
    fifos = [(*link, "fifo_bytes") for link in links]
    fifos += [("transport", "fifo_bytes"), ("transport", "long_link_fifo_bytes")]
    least = {("transport", "packet_bytes"): BULK_BYTES} | dict.fromkeys(fifos, PACKETS_PER_FIFO * BULK_BYTES)
    for path, nbytes in least.items():
        present = machine.get(path)
        if present is not None:
            yield f"{path_text(path)}={max(present, nbytes)}"
