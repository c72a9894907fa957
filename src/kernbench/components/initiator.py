"""The requesting side of reads and writes: DMAs and the host send requests, and gather the replies per operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kernbench.common.errors import UnsupportedError
from kernbench.common.values import state
from kernbench.messages.fabric import Access, AtomicData, ReadReply, ReadRequest, WriteAck, WriteData

if TYPE_CHECKING:
    from kernbench.engine.machine import Component

Target = tuple[str, Access]
"""The node of a memory, and the access to it"""


@state
class _Pending:
    """An operation that waits for replies."""

    left: int
    done: Callable[[], object]


class Initiator:
    """The requester of reads and writes for ``component``, from its port ``channel``.

    ``bytes_sent``, ``bytes_received``: the bytes so far of writes and operands, and of requested replies.
    """

    def __init__(self, component: Component, channel: str) -> None:
        self.component = component
        self.machine = component.machine
        self.channel = channel
        self._pending: dict[int, _Pending] = {}
        self.bytes_sent = self.bytes_received = 0

    @property
    def waiting(self) -> int:
        """Return the number of operations in flight."""
        return len(self._pending)

    def read(self, op: int, targets: Sequence[Target], done: Callable[[], object]) -> None:
        """Request all of ``targets``. Call ``done`` when the last byte of the last target has arrived."""
        self._pending[op] = _Pending(len(targets), done)
        me, machine = self.component.node.id, self.machine
        for part, (node, access) in enumerate(targets):
            self.bytes_received += access.rows * access.row_bytes
            machine.send(me, node, machine.header_bytes, ReadRequest(op, part, me, access), self.channel)

    def write(self, op: int, targets: Sequence[Target], done: Callable[[], object]) -> None:
        """Send data for all of ``targets``. Call ``done`` when the last acknowledgement has arrived."""
        self._pending[op] = _Pending(len(targets), done)
        me = self.component.node.id
        for part, (node, access) in enumerate(targets):
            message, nbytes = WriteData(op, part, me, access), access.nbytes
            self.bytes_sent += nbytes
            self.machine.send(me, node, nbytes, message, self.channel)

    def change(
        self, op: int, targets: Sequence[Target], done: Callable[[], None], *, operands: int, answers: bool
    ) -> None:
        """Send an atomic with ``operands`` arrays to all of ``targets``.

        ``answers``: the acknowledgements carry the previous bytes.
        """
        self._pending[op] = _Pending(len(targets), done)
        me = self.component.node.id
        for part, (node, access) in enumerate(targets):
            message, nbytes = AtomicData(op, part, me, access, answers), access.nbytes
            self.bytes_sent += operands * nbytes
            self.bytes_received += answers * nbytes
            self.machine.send(me, node, operands * nbytes, message, self.channel)

    def on_answer(self, reply: ReadReply | WriteAck) -> None:
        """Process a reply. Raises UnsupportedError for an operation without a request."""
        pending = self._pending.get(reply.op)
        if pending is None:
            raise UnsupportedError(
                f"{self.component.node.id} got a reply to operation {reply.op}, which it did not start"
            )
        pending.left -= 1
        if not pending.left:
            del self._pending[reply.op]
            pending.done()
