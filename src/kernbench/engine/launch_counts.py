"""Counts of the components of a SIP and of a launch that ran alone on it, and the times of its accesses."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from kernbench.common.ids import HOST, sip_part
from kernbench.core.log import END, KIND, LAUNCH, START, WIDTH, Kind
from kernbench.engine.machine import Machine
from kernbench.engine.passed_launches import ANSWERS, LINK_BUSY_PS, LINK_BYTES, ORDERS, Counts, PartCount


def count_sip(machine: Machine, sip: int, *, with_neighbours: bool = False) -> Counts:
    """Return the counts of the components of a SIP so far, and of the links between them.

    ``with_neighbours``: also of the links to other SIPs, and of those from components of no SIP.
    """
    nodes = machine.graph.nodes
    edges = len(machine.graph.edges)
    counts: dict[str | PartCount, NDArray[np.int64]] = {
        name: np.zeros(edges, np.int64) for name in (LINK_BYTES, LINK_BUSY_PS)
    }
    for link in machine.network.links.values():
        ends = nodes[link.src].sip, nodes[link.dst].sip
        if ends == (sip, sip) or (with_neighbours and (ends[0] == sip or ends == (None, sip))):
            use = link.measure(link)
            counts[LINK_BYTES][link.index], counts[LINK_BUSY_PS][link.index] = use.nbytes, use.busy_ps
    for part in machine.components:
        if part.node.sip == sip:
            for name, count in part.counts().items():
                of_kind = PartCount(part.node.kind, name)
                counts[of_kind] = counts.get(of_kind, np.zeros(1, np.int64)) + count
    return counts


def count_part(machine: Machine, sip: int, before: Counts, *, with_neighbours: bool = False) -> Counts:
    """Return the counts of a SIP since ``before``, which ``count_sip`` returned."""
    now = count_sip(machine, sip, with_neighbours=with_neighbours)
    return {name: content - before.get(name, np.zeros_like(content)) for name, content in now.items()}


def count_launch(machine: Machine, sip: int, before: Counts) -> Counts:
    """Return the counts of a SIP since ``before``, without orders from the host and answers to the host."""
    counts = dict(count_part(machine, sip, before))
    nodes, header = machine.graph.nodes, machine.header_bytes
    io_cpu = sip_part(sip, "io_cpu")
    for route, name in ((machine.route(HOST, io_cpu), ORDERS), (machine.route(io_cpu, HOST), ANSWERS)):
        messages = int(counts[PartCount("io_cpu", name)][0])
        for link in route.links:
            if nodes[link.src].sip == sip == nodes[link.dst].sip:
                counts[LINK_BYTES][link.index] -= header * messages
                counts[LINK_BUSY_PS][link.index] -= link.serialise_ps(header) * messages
    return counts


def first_end_ps(machine: Machine, launch: int, kinds: Collection[Kind], first_row: int, begun_ps: int) -> int:
    """Return the first time in ps after ``begun_ps`` at which a row of a launch of one of ``kinds`` ended; else now.

    ``first_row``: the number of rows of the log when the launch began.
    """
    ends = _rows_of(machine, launch, kinds, first_row)[:, END]
    return int(ends[ends > begun_ps].min(initial=machine.clock.time))


def read_spans(machine: Machine, launch: int, first_row: int) -> list[tuple[int, int]]:
    """Return the begins and ends, in ps, of the times during which DMAs of a launch read memory, in order.

    ``first_row``: the number of rows of the log when the launch began.
    """
    rows = _rows_of(machine, launch, (Kind.DMA_READ, Kind.ATOMIC), first_row)
    rows = rows[rows[:, END] >= 0]
    if not len(rows):
        return []
    rows = rows[np.argsort(rows[:, START], kind="stable")]
    starts, ends = rows[:, START], np.maximum.accumulate(rows[:, END])
    firsts = np.flatnonzero(np.r_[True, starts[1:] > ends[:-1]])
    lasts = np.r_[firsts[1:] - 1, len(rows) - 1]
    return list(zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True))


def _rows_of(machine: Machine, launch: int, kinds: Collection[Kind], first_row: int) -> NDArray[np.int64]:
    """Return the rows of a launch of some kinds, from ``first_row`` on."""
    machine.log.catch_up()
    rows = np.frombuffer(machine.log.rows[first_row * WIDTH :], np.int64).reshape(-1, WIDTH)
    wanted: NDArray[np.int64] = rows[(rows[:, LAUNCH] == launch) & np.isin(rows[:, KIND], list(kinds))]
    return wanted
