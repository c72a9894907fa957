"""The base class of memories. Builtin memories have servers. A user's class defines ``serve``, the access time."""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from kernbench.common.errors import UnsupportedError
from kernbench.common.values import value
from kernbench.components.memory_server import Answering
from kernbench.engine.machine import sound_ns
from kernbench.engine.thinking import Behaviour, ThinkingPart
from kernbench.messages.fabric import ReadRequest, WriteData
from kernbench.transport import Transfer


@value
class MemoryAccess:
    """Access by ``requester`` to ``rows`` runs of ``row_bytes``, ``stride`` bytes apart, the first at address ``pa``.

    ``write``: True for a write, whose bytes have arrived; False for a read.
    """

    pa: int
    rows: int
    row_bytes: int
    stride: int
    write: bool
    requester: str

    @property
    def nbytes(self) -> int:
        """Return the total bytes."""
        return self.rows * self.row_bytes


class Memory(ThinkingPart):
    """A component that answers reads and writes.

    ``serve``, if overridden, is called for each access: for a read when its request has arrived, for a write when its
    last byte has arrived. When the read is over, its bytes leave by the part's only port, one reply after another. When
    the write is over, the acknowledgement leaves. Accesses do not wait for each other, unless ``serve`` makes them
    wait.

    ``rate_key`` names the attribute with the bandwidth in GB/s; reports then bound a run by the memory's bandwidth. The
    time for which ``serve`` waits for a ``simpy.Resource`` counts as queueing in reports.
    """

    rate_key: ClassVar[str | None] = None
    _responder: Answering | None = None  # of a builtin memory

    def serve(self, access: MemoryAccess) -> float | Behaviour:
        """Return the duration of ``access`` in ns, or a generator that yields waits like ``run`` of a thinking part."""
        raise NotImplementedError(f"{type(self).__name__} must define serve(access), the duration of an access")

    @property
    def serves_gbs(self) -> float | None:
        """The bandwidth in GB/s: the attribute that ``rate_key`` names; None without a ``rate_key``.

        Raises UnsupportedError if ``attrs`` lacks the attribute, or if the attribute is no rate.
        """
        if self.rate_key is None:
            return None
        rate: object = dict(self.node.attrs).get(self.rate_key)
        if not isinstance(rate, int | float) or rate <= 0:
            keys = ", ".join(dict(self.node.attrs))
            raise UnsupportedError(f"{self.node.impl}: rate_key is {self.rate_key!r}, no rate among its attrs: {keys}")
        return float(rate)

    @property
    def serves_as_built(self) -> bool:
        """Return True if no user's class overrides the handling of accesses."""
        cls = type(self)
        return cls.serve is Memory.serve and cls.run is Memory.run

    def begin(self) -> None:
        """Start ``run``, unless the memory is a builtin one."""
        if self._responder is None:
            super().begin()

    def receive(self, message: object, transfer: Transfer) -> None:
        """Start a delivered read or write."""
        if not isinstance(message, ReadRequest | WriteData):
            raise UnsupportedError(f"{self.node.id} ({self.node.kind}) cannot take a {type(message).__name__}")
        if self._responder is None:
            super().receive(message, transfer)
        else:
            self.n_accesses += 1
            self._responder.take(message, transfer)

    def run(self) -> Behaviour:
        """Serve each request in a separate process."""
        while True:
            request = yield self.inbox.get()
            self.process(self._serve_request(request))

    def _serve_request(self, request: ReadRequest | WriteData) -> Behaviour:
        begin_ps, piece, write = self.clock.time, request.access, isinstance(request, WriteData)
        access = MemoryAccess(piece.pa, piece.rows, piece.row_bytes, piece.stride, write, request.requester)
        time: object = self.serve(access)
        if not isinstance(time, Generator):
            yield self.wait_ns(sound_ns("serve()", time))
        elif (yield from time) is not None:
            raise UnsupportedError("serve() yields and returns a value; a generator must wait for its duration")
        observation = self.machine.observation
        if observation is not None:
            observation.turn(request, (request.op, request.part), begin_ps + self.queued_ps, self.clock.time)
        self.answer(request)
