"""Every key of topology.yaml and ccl.yaml does something: changed, alone, it changes what is simulated.

Or the loader refuses the change; or a table below names the setting under which it has an effect, and it has one there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from typing import Any

import pytest
from one_program import (
    ALL_REDUCE,
    EVERY_ELEMENT,
    EVERY_STEP,
    SMALL,
    Observe,
    Step,
    Torch,
    consumed,
    events,
    host_copies,
    near_memories,
    outcomes,
    queues,
    simulated,
    traffic,
)

from ideal_memory import IDEAL
from kernbench.ccl.loading import ccl_config_of, find_packaged_file
from kernbench.common.config import Document, Path, apply_overrides, load_document, path_text
from kernbench.common.errors import ConfigError
from kernbench.common.units import parse_size
from kernbench.messages.requests import KernelRef
from kernbench.topology.builder import compile_topology, topology_file
from kernbench.triton_emu.tl_context import TLContext as Tl

pytestmark = pytest.mark.filterwarnings("ignore:all_reduce. the configured")

TOPOLOGY = apply_overrides(load_document(topology_file("default")), SMALL)
CCL = load_document(find_packaged_file())
SLOW_SRAM, SLOW_TCM = "cube.components.sram.attrs.bw_gbs=32", "pe.tcm.read_bw_gbs=32"


@dataclass(frozen=True, slots=True)
class Setting:
    """Changes of the small machine and of the collectives; which steps of the program, and what of them counts."""

    machine: tuple[str, ...] = ()
    ccl: tuple[str, ...] = ()
    steps: tuple[Step, ...] = EVERY_STEP
    observe: Observe = simulated


@dataclass(frozen=True, slots=True)
class Leaf:
    """A key of one of the files, and its value."""

    file: str
    path: Path
    value: Any = field(compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{path_text(self.path)}"


def leaves(file: str, data: Any, path: Path = ()) -> Iterator[Leaf]:
    """Every value of a file; a list is one."""
    if not isinstance(data, dict):
        yield Leaf(file, path, data)
        return
    for key, value in data.items():
        yield from leaves(file, value, (*path, key))


LEAVES = [*leaves("topology", TOPOLOGY.data), *leaves("ccl", CCL.data)]
LEFT_OUT = [
    leaf
    for leaf in leaves("topology", compile_topology(TOPOLOGY).spec.model_dump(mode="json"))
    if leaf not in set(LEAVES)
]
"""Keys of topology.yaml that the packaged file leaves out, with what they are then."""

# Another value, where twice the value, or a text that means nothing, would say too little.
OTHER_VALUES = {
    "topology:address.format": "wide",
    "topology:transport.packet_bytes": "512",
    "topology:transport.long_link_fifo_bytes": "4096",
    "topology:system.sips.topology": "switch",
    "topology:sip.io_chiplet.edge": "W",
    "topology:cube.pe_layout.corners": "[SE, NW]",
    "topology:cube.hbm.channel_hash": "mod",
    "topology:cube.hbm.timing": "hbm2",
    "topology:cube.hbm.num_pcs": "4",
    "topology:cube.hbm.burst_bytes": "512",
    "topology:cube.hbm.access_bytes": "128",
    "topology:cube.hbm.mapping": "RoBaRaCoCh",
    "topology:cube.hbm.queue_entries": "4",
    "topology:cube.hbm.refresh": "none",
    "topology:cube.components.hbm_ctrl.attrs.access_ns": "40",
    "topology:cube.components.hbm_ctrl.attrs.efficiency": "0.5",
    "topology:cube.components.sram.attrs.bw_gbs": "99",
    "topology:pe.gemm.dtype_acc": "f16",
    "topology:pe.gemm.acc_bytes": "0",
    "topology:pe.mmu.tlb_entries": "3",
    "topology:pe.dma.ordering": "relaxed",
    "ccl:defaults.algorithm": "ring_allreduce_tcm",
    "ccl:defaults.buffer_kind": "hbm",
    "ccl:defaults.backpressure": "poll",
    "ccl:defaults.n_slots": "1",
    "ccl:algorithms.tree_allreduce_7.world_size": "5",
}
OTHER_BY_KEY = {
    "fifo": ("bounded", "unbounded"),
    "fifo_bytes": ("8192",),
    "length_mm": ("77",),
    "module": ("ring_allreduce", "tree_allreduce"),
    "topology": ("ring_1d", "none"),
    "mapper": ("leader_only", "all_pes"),
    "validator": ("single_shard_per_rank", "row_per_cube"),
    "buffer_kind": ("hbm", "sram"),
}
# One thing can stand there, or only what fits the rest: the loader says so.
REFUSED = ("kind", "impl", "w", "h")

SLOW_SWITCH = ("system.components.switch.attrs.overhead_ns=500",)
TLB = ("pe.mmu={page_bytes: 512, tlb_entries: 2, tlb_miss_ns: 90}",)
HOST_ONLY = (host_copies,)


def congested(link_class: str) -> Setting:
    """Links of a class with more overhead than bounded FIFOs can bridge."""
    changes = (f"{link_class}.overhead_ns=300", f"{link_class}.fifo=bounded", "transport.long_link_fifo_bytes=4096")
    return Setting(changes, steps=(host_copies, traffic))


def values(torch: Torch) -> None:
    """A kernel that looks at numbers."""

    def kernel(x: int, *, tl: Tl) -> None:
        tl.value(tl.load(x, 4, "f32"))

    torch.launch("look", kernel, torch.ones(4))


def accumulated(torch: Torch) -> None:
    """A dot that adds to the result of another."""

    def kernel(x: int, *, tl: Tl) -> None:
        a = tl.load(x, (32, 32), "f16")
        acc = tl.dot(a, a)
        acc = tl.dot(a, a, acc)

    torch.launch("add up", kernel, torch.ones(32, 32, dtype="f16"))


def ahead(torch: Torch) -> None:
    """Launches in the queue of an IO_CPU, before a copy that need not wait for them."""

    def kernel(*, tl: Tl) -> None: ...

    for _ in range(8):
        torch.launch_on("ahead", [(0, 0, 0)], KernelRef(name="ahead", function=kernel), in_order=True)
    torch.ones(4).numpy()


def algorithm(name: str, *machine: str, ccl: tuple[str, ...] = ()) -> Setting:
    """``name`` is the configured collective."""
    return Setting(machine, (f"defaults.algorithm={name}", *ccl), (queues, *ALL_REDUCE))


SETTINGS = {
    # By design no time depends on it: it saves events.
    "topology:transport.express": Setting(observe=events, steps=HOST_ONLY),
    "topology:transport.long_link_fifo_bytes": Setting(SLOW_SWITCH, steps=HOST_ONLY),
    "topology:cube.hbm.access_bytes": Setting(IDEAL),
    "topology:cube.components.hbm_ctrl.attrs.efficiency": Setting(IDEAL, steps=HOST_ONLY),
    # A slice with banks can be what a program waits for to the end.
    **dict.fromkeys(
        (
            "topology:cube.components.sram.attrs.overhead_ns",
            "topology:cube.components.sram.attrs.access_ns",
            "topology:cube.links.router_to_sram.length_mm",
            "topology:cube.links.router_to_sram.overhead_ns",
        ),
        Setting(IDEAL),
    ),
    # Where a bank is slower than the links.
    "topology:cube.sram.banks": Setting((SLOW_SRAM,), steps=(near_memories,)),
    "topology:cube.sram.bank_bytes": Setting((SLOW_SRAM, "cube.sram.banks=4"), steps=(near_memories,)),
    "topology:pe.tcm.banks": Setting((SLOW_TCM,), steps=(near_memories,)),
    "topology:pe.tcm.bank_bytes": Setting((SLOW_TCM, "pe.tcm.banks=4"), steps=(near_memories,)),
    # It is there or it is not: what does not fit any more fails.
    "topology:cube.sram.bytes": Setting(("cube.sram.bytes=48KiB",), ("defaults.buffer_kind=sram",), (queues,)),
    "topology:pe.gemm.acc_bytes": Setting(steps=(accumulated,)),
    "topology:pe.mmu.page_bytes": Setting(TLB),
    "topology:pe.mmu.tlb_entries": Setting(TLB),
    "topology:pe.mmu.tlb_miss_ns": Setting(TLB),
    "ccl:defaults.backpressure": Setting(ccl=("defaults.n_slots=1",), steps=ALL_REDUCE),
    "ccl:defaults.poll_ns": Setting(ccl=("defaults.backpressure=poll", "defaults.n_slots=1"), steps=ALL_REDUCE),
    "topology:sip.components.io_cpu.attrs.queue": Setting(("sip.components.io_cpu.attrs.queue=2",), steps=(ahead,)),
    "topology:pe.components.pe_cpu.attrs.value_ns": Setting(steps=(values,)),
    # With these world sizes ranks are PEs; a collective of ranks that are SIPs needs as many SIPs.
    "ccl:algorithms.mesh_allreduce_4.module": algorithm(
        "mesh_allreduce_4", "system.sips={count: 4, topology: torus_2d}"
    ),
    "ccl:algorithms.tree_allreduce_7.module": algorithm(
        "tree_allreduce_7", ccl=("algorithms.tree_allreduce_7.world_size=2",)
    ),
}


@cache
def documents(setting: Setting) -> tuple[Document, Document]:
    """The files of a setting."""
    return apply_overrides(TOPOLOGY, setting.machine), apply_overrides(CCL, setting.ccl)


@cache
def unchanged(setting: Setting) -> list[str]:
    """What the program does with the files of a setting."""
    machine, ccl = documents(setting)
    return list(outcomes(compile_topology(machine), ccl_config_of(ccl), setting.observe, setting.steps))


def other(leaf: Leaf, now: Any) -> str:
    """Another value of a key than ``now``, as ``--set`` takes it."""
    found, value = OTHER_VALUES.get(str(leaf)), leaf.value
    if found is not None:
        return found
    if leaf.path[-1] in OTHER_BY_KEY and not isinstance(value, int | float):
        return next(name for name in OTHER_BY_KEY[str(leaf.path[-1])] if name != now)
    if isinstance(value, bool):
        return str(not value).lower()
    if isinstance(value, int | float):
        return repr(2 * value if value else 1.5)
    if leaf.path[-1] in REFUSED:
        return "nonsense"
    assert isinstance(value, str), f"{leaf} is {value!r}: give another value in OTHER_VALUES"
    return repr(parse_size(value) // 2)


def effect(leaf: Leaf, setting: Setting) -> str | None:
    """What changing ``leaf`` does under ``setting``; None: nothing."""
    machine, ccl = documents(setting)
    place = machine if leaf.file == "topology" else ccl
    change = f"{path_text(leaf.path)}={other(leaf, place.get(leaf.path))}"
    try:
        topology = compile_topology(apply_overrides(machine, [change] if place is machine else []))
        collectives = ccl_config_of(apply_overrides(ccl, [change] if place is ccl else []))
    except ConfigError as refused:
        return f"refused: {refused}" if leaf.path[-1] in REFUSED else None
    found = outcomes(topology, collectives, setting.observe, setting.steps)
    for step, (after, before) in enumerate(zip_longest(found, unchanged(setting))):
        if after != before:
            return f"step {step} differs with {change}"
    return None


def setting_of(leaf: Leaf) -> Setting:
    """Where ``leaf`` has an effect: as a rule on the small machine as it is."""
    if leaf.path[0] == "algorithms":
        return SETTINGS.get(str(leaf)) or algorithm(str(leaf.path[1]))
    if leaf.path[-1] in {"fifo", "fifo_bytes"} and "links" in leaf.path:
        return congested(path_text(leaf.path[:-1]))
    if leaf.path[0] == "energy":
        return Setting(steps=(*EVERY_ELEMENT, *EVERY_STEP), observe=consumed)
    return SETTINGS.get(str(leaf), Setting())


def test_the_program_ends_well() -> None:
    """What it fails with would hide what comes after."""
    assert len(unchanged(Setting())) == len(EVERY_STEP)


def of_another(leaf: Leaf) -> bool:
    """Whether an algorithm, link or component before has this key too."""
    before = {each.path[-1] for each in LEAVES[: LEAVES.index(leaf)] if each.file == leaf.file}
    is_one_of_many = leaf.path[0] == "algorithms" or not {"links", "components"}.isdisjoint(leaf.path)
    return is_one_of_many and leaf.path[-1] in before and str(leaf) not in SETTINGS


@pytest.mark.parametrize(
    "leaf",
    [pytest.param(each, marks=[pytest.mark.slow] * of_another(each), id=str(each)) for each in LEAVES],
)
def test_a_key_does_something(leaf: Leaf) -> None:
    assert effect(leaf, setting_of(leaf))


@pytest.mark.slow
@pytest.mark.parametrize("leaf", LEFT_OUT, ids=str)
def test_a_key_that_may_be_left_out_does_something(leaf: Leaf) -> None:
    assert effect(leaf, setting_of(leaf))
