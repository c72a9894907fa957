"""The requests of a host to the machine: frozen values, numbered (``request_id``) when they are submitted.

The file also defines what requests carry: the mapping of a tensor's shards, and the queues (IPCQ) of a PE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from kernbench.common.dtypes import DType
from kernbench.common.errors import InputError
from kernbench.common.values import value


@value(kw_only=True)
class MappedShard:
    """Bytes ``offset_bytes .. offset_bytes + nbytes`` of a tensor: their owner, a PE, and their address ``pa``.

    Shards with the same offset and size are copies of each other. ``pa`` is an encoded physical address.
    """

    sip: int
    cube: int
    pe: int
    offset_bytes: int
    nbytes: int
    pa: int


@value(kw_only=True)
class TensorMapping:
    """The tensor ``name`` at virtual addresses ``va_base .. va_base + nbytes``.

    With ``unit_bytes``, the range holds several tensors, each at a multiple of ``unit_bytes``.
    """

    name: str
    va_base: int
    nbytes: int
    shards: tuple[MappedShard, ...]
    unit_bytes: int | None = None

    @property
    def va_end(self) -> int:
        """The first virtual address behind the tensor."""
        return self.va_base + self.nbytes


PeCoord: TypeAlias = tuple[int, int, int]
"""(sip, cube, pe)"""


@value(kw_only=True)
class HostMsg:
    """Base of all requests. ``request_id`` is -1 before submission. ``name`` is for traces and reports."""

    correlation_id: str = ""
    request_id: int = -1
    name: str = ""

    @property
    def title(self) -> str:
        """The name in traces and reports, with further details."""
        return self.name


def _at_least_1(msg: HostMsg, **counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{type(msg).__name__}: {name}={count}, must be at least 1")


class HostBytes:
    """``nbytes`` bytes of the host, which several writes may share.

    Phase 2 calls ``make`` for the bytes (uint8) when it first writes them. ``held_bytes``: the memory in bytes that is
    occupied until then.
    """

    __slots__ = ("_held_bytes", "_made", "_make", "nbytes")

    def __init__(self, nbytes: int, make: Callable[[], np.ndarray[Any, Any]], held_bytes: int = 0) -> None:
        self.nbytes, self._held_bytes = nbytes, held_bytes
        self._make: Callable[[], np.ndarray[Any, Any]] | None = make
        self._made: np.ndarray[Any, Any] | None = None

    @property
    def shape(self) -> tuple[int]:
        """The array's shape."""
        return (self.nbytes,)

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        """The array's dtype."""
        return np.dtype(np.uint8)

    def take_held_bytes(self) -> int:
        """Return ``held_bytes`` at the first call, and 0 later, because several writes may share the bytes."""
        nbytes, self._held_bytes = self._held_bytes, 0
        return nbytes

    def array(self) -> np.ndarray[Any, Any]:
        """Return the bytes; the first call makes them."""
        if self._make is not None:
            self._made, self._make = self._make(), None
        assert self._made is not None, "made by now"
        return self._made


@value(kw_only=True, eq=False)
class MemoryWriteMsg(HostMsg):
    """Write ``nbytes`` at physical address ``pa`` (encoded): from the host, or by the device itself with ``pattern``.

    ``data`` (uint8, ``nbytes`` long, or a ``HostBytes``) is written in phase 2; without ``data`` only time passes.
    ``pattern``: bytes that the cube's M_CPU DMA repeats over the range; the host then sends only a header. Raises
    InputError if ``nbytes`` or ``pattern`` is empty, or if ``data`` has another size.
    """

    pa: int
    nbytes: int
    data: np.ndarray[Any, Any] | HostBytes | None = None
    pattern: bytes | None = None

    def __post_init__(self) -> None:
        _at_least_1(self, nbytes=self.nbytes)
        if self.pattern is not None and not self.pattern:
            raise InputError("MemoryWriteMsg: a pattern has at least 1 byte")
        if self.data is not None and self.data.nbytes != self.nbytes:
            raise InputError(f"MemoryWriteMsg: data has {self.data.nbytes} bytes, nbytes={self.nbytes}")


@value(kw_only=True)
class MemoryReadMsg(HostMsg):
    """Read ``nbytes`` at physical address ``pa`` (encoded) to the host. Raises InputError if ``nbytes`` is below 1."""

    pa: int
    nbytes: int

    def __post_init__(self) -> None:
        _at_least_1(self, nbytes=self.nbytes)


@value(kw_only=True)
class PeDmaMsg(HostMsg):
    """Traffic without a kernel: the DMA of PE ``pe`` reads or writes ``nbytes`` at physical address ``pa``.

    The request skips the control path: the descriptor is at the DMA when the message is submitted. ``repeat``
    descriptors are queued, at most ``outstanding`` of them in flight. Their addresses are ``stride_bytes`` apart.
    Raises InputError if ``nbytes``, ``repeat`` or ``outstanding`` is below 1, or if ``op`` is unknown.
    """

    pe: PeCoord
    pa: int
    nbytes: int
    op: Literal["read", "write"] = "read"
    repeat: int = 1
    outstanding: int = 1
    stride_bytes: int = 0

    def __post_init__(self) -> None:
        _at_least_1(self, nbytes=self.nbytes, repeat=self.repeat, outstanding=self.outstanding)
        if self.op not in ("read", "write"):
            raise InputError(f"PeDmaMsg: op={self.op!r}, must be read or write")


@value(kw_only=True)
class PartMsg(HostMsg):
    """Send ``content`` to the part at node ``part`` of ``cube.extra`` or ``pe.extra``; done when the part answers.

    The part receives a PartOrder, which costs a header on the links. The program and the part agree on ``content``.
    """

    part: str
    content: object = None


@value(kw_only=True)
class KernelRef:
    """A kernel: the function that each PE runs, and the kernel's name.

    ``file``: the source file of the user's function, if ``function`` is a front end's wrapper. None: the file of
    ``function``.
    """

    name: str
    function: Callable[..., object]
    file: str | None = None


@value(kw_only=True)
class TensorArg:
    """A tensor argument: the kernel receives ``va`` (an integer)."""

    name: str
    va: int
    shape: tuple[int, ...]
    dtype: DType
    owners: tuple[PeCoord, ...]


LaunchArg: TypeAlias = TensorArg | int | float | str | bool | tuple[int, ...] | None


@value(kw_only=True)
class LaunchStream:
    """A stream of launches, as in CUDA: a PE runs launches of one stream in order, and several streams concurrently.

    A machine has up to ``count`` streams at once: each launch gets 1/``count`` of a PE's scratch.
    """

    name: str
    count: int


class LaunchOnDevice(Protocol):
    """An observer of a launch on its SIP, who may let the launch pass, or a part of it."""

    def begin(self, launch: int, now_ps: int) -> int | None:
        """Note that the IO_CPU begins a launch. Return the time in ps after which it has passed; None: simulate it."""

    def end(self, launch: int, now_ps: int) -> int:
        """Note that the IO_CPU has all answers. Return the time in ps that passes before the launch has ended."""


@value(kw_only=True)
class KernelLaunchMsg(HostMsg):
    """Run ``kernel(*args, tl=…, **kwargs)`` once on every PE of ``targets``.

    - ``grid``: the answers of ``num_programs`` (PEs of a cube, cubes of a SIP, SIPs), if ``targets`` are only a part
      of the grid.
    - ``algorithm``: the name in ``ccl.yaml`` of a collective's algorithm.
    - ``called_at``: the line of the host program that calls a kernel of a library.
    - ``stream``: None is the default stream. On a PE, a launch of the default stream waits for all earlier launches,
      and all later launches wait for it.
    - ``in_order``: the launch is in the queue of its SIP's IO_CPU, and begins when the launch before it has ended.
    - ``n_following``: launches submitted next that the host sends in the same order.
    - ``after``: requests on the same SIP that must have ended before the launch begins.
    - ``on_device``: an observer of the launch. If its ``begin`` returns a time, the IO_CPU runs no kernel, and answers
      after this time. If its ``end`` returns a time, the IO_CPU answers so much later.
    """

    kernel: KernelRef
    args: tuple[LaunchArg, ...]
    targets: tuple[PeCoord, ...]
    kwargs: tuple[tuple[str, LaunchArg], ...] = ()
    grid: tuple[int, int, int] | None = None
    algorithm: str | None = None
    called_at: str = ""
    stream: LaunchStream | None = None
    in_order: bool = False
    n_following: int = 0
    after: frozenset[int] = frozenset()
    on_device: LaunchOnDevice | None = None

    @property
    def launched_at(self) -> str:
        """The line that launched a kernel which runs while the program continues; "" for others."""
        return self.called_at if self.in_order else ""

    @property
    def counts(self) -> tuple[int, int, int]:
        """The answers of ``num_programs``, by axis."""
        sips, cubes, pes = ({target[axis] for target in self.targets} for axis in range(3))
        return self.grid or (len(pes), len(cubes), len(sips))

    @property
    def title(self) -> str:
        """The name of the launch, followed by the algorithm if the launch is a collective."""
        name = self.name or self.kernel.name
        return name if self.algorithm in (None, name) else f"{name} by {self.algorithm}"

    def __post_init__(self) -> None:
        if any(name == "tl" for name, _ in self.kwargs):
            name = self.name or self.kernel.name
            raise InputError(f"launch {name!r}: the machine gives a kernel its tl; leave it out")


@value(kw_only=True)
class MmuMapMsg(HostMsg):
    """Enter a tensor's mapping in the MMUs of ``sip``: of all its PEs, or of the PEs in ``target_pe``."""

    sip: int
    mapping: TensorMapping
    target_pe: Literal["all"] | tuple[PeCoord, ...] = "all"


@value(kw_only=True)
class MmuUnmapMsg(HostMsg):
    """Remove the tensor at ``va_base`` from the MMUs of ``sip``: of all its PEs, or of the PEs in ``target_pe``."""

    sip: int
    va_base: int
    target_pe: Literal["all"] | tuple[PeCoord, ...] = "all"


BufferKind: TypeAlias = Literal["tcm", "hbm", "sram"]
Backpressure: TypeAlias = Literal["sleep", "poll"]

OPPOSITE_DIRECTION = {"E": "W", "W": "E", "N": "S", "S": "N"}
OPPOSITE_DIRECTION |= {f"global_{a}": f"global_{b}" for a, b in tuple(OPPOSITE_DIRECTION.items())}


@value(kw_only=True)
class QueuePeer:
    """The other end of a queue pair: queue ``direction`` of PE ``pe``.

    ``rx_base_pa``: the address of the peer's ring; None if the peer receives no messages from this end.
    """

    pe: PeCoord
    direction: str
    rx_base_pa: int | None


@value(kw_only=True)
class QueueSetup:
    """One queue pair of a PE. ``rx_base_pa`` is the address of its receive ring; None if no PE sends into it.

    A ring is ``n_slots`` slots of ``slot_size`` bytes. ``via_port`` ("E", "W", "N", "S"): the scale-up link by which
    messages leave their SIP; None: the shortest route.
    """

    direction: str
    peer: QueuePeer
    rx_base_pa: int | None
    n_slots: int
    slot_size: int
    via_port: str | None = None


@value(kw_only=True)
class IpcqInitMsg(HostMsg):
    """Install queue pairs on one PE, which has none of their names. A removal refers to ``installation``."""

    pe: PeCoord
    queues: tuple[QueueSetup, ...]
    buffer_kind: BufferKind = "tcm"
    backpressure: Backpressure = "sleep"
    poll_ns: float = 50.0
    credit_bytes: int = 16
    installation: int = 0


@value(kw_only=True)
class IpcqRemoveMsg(HostMsg):
    """Remove the queue pairs of one ``installation`` from a PE, so that others can be installed; None: of every one."""

    pe: PeCoord
    installation: int | None = None
