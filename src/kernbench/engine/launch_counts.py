"""Counts of the components of a SIP, and of a launch that ran alone on it."""

from __future__ import annotations

import numpy as np

from kernbench.common.ids import HOST, sip_part
from kernbench.engine.machine import Machine
from kernbench.engine.passed_launches import ANSWERS, LINK_BUSY_PS, LINK_BYTES, ORDERS, Counts


def count_sip(machine: Machine, sip: int) -> Counts:
    """Return the counts of the components of a SIP so far, and of the links between them."""
    nodes = machine.graph.nodes
    counts = {name: np.zeros(len(machine.graph.edges), np.int64) for name in (LINK_BYTES, LINK_BUSY_PS)}
    for link in machine.network.links.values():
        if nodes[link.src].sip == sip == nodes[link.dst].sip:
            use = link.measure(link)
            counts[LINK_BYTES][link.index], counts[LINK_BUSY_PS][link.index] = use.nbytes, use.busy_ps
    for part in machine.components:
        if part.node.sip == sip:
            for name, count in part.counts().items():
                counts[name] = counts.get(name, np.zeros(1, np.int64)) + count
    return counts


def count_launch(machine: Machine, sip: int, before: Counts) -> Counts:
    """Return the counts of a SIP since ``before``, without orders from the host and answers to the host."""
    counts = {
        name: content - before.get(name, np.zeros_like(content)) for name, content in count_sip(machine, sip).items()
    }
    nodes, header = machine.graph.nodes, machine.header_bytes
    io_cpu = sip_part(sip, "io_cpu")
    for route, messages in ((machine.route(HOST, io_cpu), ORDERS), (machine.route(io_cpu, HOST), ANSWERS)):
        for link in route.links:
            if nodes[link.src].sip == sip == nodes[link.dst].sip:
                counts[LINK_BYTES][link.index] -= header * counts[messages][0]
                counts[LINK_BUSY_PS][link.index] -= link.serialise_ps(header) * counts[messages][0]
    return counts
