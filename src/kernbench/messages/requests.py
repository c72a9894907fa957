"""The requests a host makes of the machine: frozen values, numbered (``request_id``) when they are submitted.

Beside them what they carry: where the shards of a tensor lie, and the queues (IPCQ) installed on a PE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from kernbench.common.dtypes import DType
from kernbench.common.errors import InputError
from kernbench.common.values import value


@value(kw_only=True)
class MappedShard:
    """Bytes ``offset_bytes .. offset_bytes + nbytes`` of a tensor: the PE that owns them, and ``pa``, their address.

    Shards with the same offset and size are copies of each other; ``pa`` is an encoded physical address.
    """

    sip: int
    cube: int
    pe: int
    offset_bytes: int
    nbytes: int
    pa: int


@value(kw_only=True)
class TensorMapping:
    """The tensor ``name`` at virtual addresses ``va_base .. va_base + nbytes``."""

    name: str
    va_base: int
    nbytes: int
    shards: tuple[MappedShard, ...]

    @property
    def va_end(self) -> int:
        """The first virtual address behind the tensor."""
        return self.va_base + self.nbytes


PeCoord: TypeAlias = tuple[int, int, int]
"""(sip, cube, pe)"""


@value(kw_only=True)
class HostMsg:
    """Common to all requests. ``request_id`` -1 means: not submitted yet. ``name`` is for traces and reports."""

    correlation_id: str = ""
    request_id: int = -1
    name: str = ""

    @property
    def title(self) -> str:
        """The name in traces and reports, with what has to be told beside it."""
        return self.name


def _at_least_1(msg: HostMsg, **counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{type(msg).__name__}: {name}={count}, must be at least 1")


class HostBytes:
    """``nbytes`` bytes of the host that ``make`` (uint8) makes when phase 2 writes them, once for all writes of them.

    ``held_bytes``: the memory that they take until then.
    """

    __slots__ = ("_held_bytes", "_made", "_make", "nbytes")

    def __init__(self, nbytes: int, make: Callable[[], np.ndarray[Any, Any]], held_bytes: int = 0) -> None:
        self.nbytes, self._held_bytes = nbytes, held_bytes
        self._make: Callable[[], np.ndarray[Any, Any]] | None = make
        self._made: np.ndarray[Any, Any] | None = None

    @property
    def shape(self) -> tuple[int]:
        """The same as the array's."""
        return (self.nbytes,)

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        """The same as the array's."""
        return np.dtype(np.uint8)

    def take_held_bytes(self) -> int:
        """Return the memory that they take, to the first who asks: several writes may share them."""
        held, self._held_bytes = self._held_bytes, 0
        return held

    def array(self) -> np.ndarray[Any, Any]:
        """Return the bytes, which are made by the first call."""
        if self._make is not None:
            self._made, self._make = self._make(), None
        assert self._made is not None, "made by now"
        return self._made


@value(kw_only=True, eq=False)
class MemoryWriteMsg(HostMsg):
    """Write ``nbytes`` at physical address ``pa`` (encoded): from the host, or by the device itself with ``pattern``.

    ``data`` (uint8, ``nbytes`` long, or what makes it) is what phase 2 writes; without it only time passes.
    ``pattern`` is the bytes that are repeated over the range by the cube's M_CPU DMA: the host then sends a header
    only. InputError for a range, data or a pattern of no bytes, and for data of another size.
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
    """Read ``nbytes`` at physical address ``pa`` (encoded) to the host. InputError for no bytes."""

    pa: int
    nbytes: int

    def __post_init__(self) -> None:
        _at_least_1(self, nbytes=self.nbytes)


@value(kw_only=True)
class PeDmaMsg(HostMsg):
    """Traffic without a kernel: the DMA of PE ``pe`` reads or writes ``nbytes`` at physical address ``pa``.

    Nothing of the control path is involved: the descriptor is at the DMA when the message is submitted.
    ``repeat`` descriptors are queued, at most ``outstanding`` of them under way at once. InputError for none of either,
    for no bytes and for another ``op``.
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
    """Tell the part at node ``part`` of ``cube.extra`` or ``pe.extra`` something: over when the part answers.

    It gets a PartOrder with ``content``, which is between the program and the part; a header on the links.
    """

    part: str
    content: object = None


@value(kw_only=True)
class KernelRef:
    """A kernel: the function that each PE runs, and the name it goes by.

    ``file``: the source file whose lines are the program's, when the function is that of a front end which runs the
    user's; None: the function's own.
    """

    name: str
    function: Callable[..., object]
    file: str | None = None


@value(kw_only=True)
class TensorArg:
    """A tensor argument: the kernel sees ``va`` (an integer)."""

    name: str
    va: int
    shape: tuple[int, ...]
    dtype: DType
    owners: tuple[PeCoord, ...]


LaunchArg: TypeAlias = TensorArg | int | float | str | bool | tuple[int, ...] | None


@value(kw_only=True)
class LaunchStream:
    """A stream of launches, as CUDA has them: a PE runs those of one in order, those of several side by side.

    A machine has up to ``count`` streams at once: each launch has that part of a PE's scratch.
    """

    name: str
    count: int


@value(kw_only=True)
class KernelLaunchMsg(HostMsg):
    """Run ``kernel(*args, tl=…, **kwargs)`` once on every PE of ``targets``.

    ``grid``: what ``num_programs`` says, PEs of a cube, cubes of a SIP and SIPs, when ``targets`` are a part of it.
    ``algorithm``: of a collective, what carries it out, by its name in ``ccl.yaml``. ``called_at``: the line of the
    host program that a kernel which is not its own is run for. ``stream``: None is the default stream: on a PE, a
    launch of it waits for all launches before it, and all behind wait for it.
    """

    kernel: KernelRef
    args: tuple[LaunchArg, ...]
    targets: tuple[PeCoord, ...]
    kwargs: tuple[tuple[str, LaunchArg], ...] = ()
    grid: tuple[int, int, int] | None = None
    algorithm: str | None = None
    called_at: str = ""
    stream: LaunchStream | None = None

    @property
    def counts(self) -> tuple[int, int, int]:
        """The answers of ``num_programs``, by axis."""
        sips, cubes, pes = ({target[axis] for target in self.targets} for axis in range(3))
        return self.grid or (len(pes), len(cubes), len(sips))

    @property
    def title(self) -> str:
        """The name, and of a collective the algorithm."""
        name = self.name or self.kernel.name
        return name if self.algorithm in (None, name) else f"{name} by {self.algorithm}"

    def __post_init__(self) -> None:
        if any(name == "tl" for name, _ in self.kwargs):
            name = self.name or self.kernel.name
            raise InputError(f"launch {name!r}: the machine gives a kernel its tl; leave it out")


@value(kw_only=True)
class MmuMapMsg(HostMsg):
    """Tell the MMUs of ``sip`` where a tensor lies: of all its PEs, or of those in ``target_pe``."""

    sip: int
    mapping: TensorMapping
    target_pe: Literal["all"] | tuple[PeCoord, ...] = "all"


@value(kw_only=True)
class MmuUnmapMsg(HostMsg):
    """Take the tensor at ``va_base`` out of the MMUs of ``sip``."""

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

    ``rx_base_pa``: where its ring begins; None when it takes no messages from here.
    """

    pe: PeCoord
    direction: str
    rx_base_pa: int | None


@value(kw_only=True)
class QueueSetup:
    """One queue pair of a PE. ``rx_base_pa`` is where its own ring begins; None when nobody sends into it.

    A ring is ``n_slots`` slots of ``slot_size`` bytes. ``via_port`` ("E", "W", "N", "S"): the scale-up link that its
    messages leave their SIP by; None: the shortest way.
    """

    direction: str
    peer: QueuePeer
    rx_base_pa: int | None
    n_slots: int
    slot_size: int
    via_port: str | None = None


@value(kw_only=True)
class IpcqInitMsg(HostMsg):
    """Install queue pairs on one PE; an error when it has any. ``installation`` is what its removal refers to."""

    pe: PeCoord
    queues: tuple[QueueSetup, ...]
    buffer_kind: BufferKind = "tcm"
    backpressure: Backpressure = "sleep"
    poll_ns: float = 50.0
    credit_bytes: int = 16
    installation: int = 0


@value(kw_only=True)
class IpcqRemoveMsg(HostMsg):
    """Take all queue pairs off one PE, so that others can be installed; of one ``installation``, None: of any."""

    pe: PeCoord
    installation: int | None = None
