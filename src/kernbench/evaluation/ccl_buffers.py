"""Where rings of queues lie: one message at a time, and from all PEs of a cube at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernbench.ccl.config import CclConfig
from kernbench.ccl.install import configured
from kernbench.common.config import Document
from kernbench.common.units import ps_to_ns
from kernbench.engine.engine import GraphEngine
from kernbench.evaluation.ccl_fabrics import DTYPE, ITEM_BYTES, joined, ring_of
from kernbench.evaluation.ccl_results import BufferPoint
from kernbench.messages.queues import BufferKind
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import NoParams, RuntimeContext

KINDS: tuple[BufferKind, ...] = ("tcm", "sram", "hbm")
MESSAGE_SIZES = (64, 256, 1024, 4096)
NAME = "pass on"


def pass_on(t_ptr: int, n: int, senders: int, dtype: str, *, tl: Any) -> None:
    """The first ``senders`` PEs of a ring send their ``n`` elements to the next, which adds them to its own."""
    here, pes = tl.program_id(0), tl.num_programs(0)
    at = t_ptr + here * n * tl.itemsize(dtype)
    mine = tl.load(at, n, dtype)
    tl.wait(mine)
    if here < senders:
        tl.send("E", mine)
    if (here - 1) % pes < senders:
        tl.store(at, mine + tl.recv("W", n, dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRun:
    """One simulation: messages between the PEs of a cube of ``machine``, whose rings lie in memory of this kind."""

    machine: Document
    ccl: CclConfig
    buffer_kind: BufferKind
    sizes: tuple[int, ...] = MESSAGE_SIZES

    def run(self) -> list[BufferPoint]:
        """One sender, then all PEs; numbers included."""
        engine = GraphEngine(joined(self.machine, ring_of(1)))
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
        records = [each for each in engine.op_log if each.seq >= first and each.kind in ("ipcq_copy", "math")]
        sent = min(each.t_start_ps for each in records if each.kind == "ipcq_copy")
        added = max(each.t_end_ps for each in records if each.kind == "math")
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
    """The largest message that the queues of all kinds take."""
    return min(configured(f"ring_allreduce_{kind}", None, ccl).config.slot_size for kind in KINDS)
