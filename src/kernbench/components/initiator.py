"""The asking side of reads and writes: DMAs and the host send requests and gather the answers of one operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kernbench.common.errors import UnsupportedError
from kernbench.common.values import state
from kernbench.messages.fabric import Access, AtomicData, ReadReply, ReadRequest, WriteAck, WriteData

if TYPE_CHECKING:
    from kernbench.engine.part import Component

Target = tuple[str, Access]
"""The node of a memory and what is accessed there."""


@state
class _Pending:
    """An operation whose answers are awaited."""

    left: int
    done: Callable[[], object]


class Initiator:
    """Reads and writes on behalf of ``component``, from its port ``channel``."""

    def __init__(self, component: Component, channel: str) -> None:
        self.component = component
        self.machine = component.machine
        self.channel = channel
        self._pending: dict[int, _Pending] = {}

    @property
    def waiting(self) -> int:
        """Return the number of operations under way."""
        return len(self._pending)

    def read(self, op: int, targets: Sequence[Target], done: Callable[[], object]) -> None:
        """Ask for all of ``targets``; call ``done`` when the last byte of the last one is here."""
        self._pending[op] = _Pending(len(targets), done)
        me, machine = self.component.node.id, self.machine
        for part, (node, access) in enumerate(targets):
            machine.send(me, node, machine.header_bytes, ReadRequest(op, part, me, access), self.channel)

    def write(self, op: int, targets: Sequence[Target], done: Callable[[], object]) -> None:
        """Send data for all of ``targets``; call ``done`` when the last acknowledgement is here."""
        self._pending[op] = _Pending(len(targets), done)
        me = self.component.node.id
        for part, (node, access) in enumerate(targets):
            message = WriteData(op, part, me, access)
            self.machine.send(me, node, access.nbytes, message, self.channel)

    def change(
        self, op: int, targets: Sequence[Target], done: Callable[[], None], *, operands: int, answers: bool
    ) -> None:
        """Send ``operands`` arrays to combine with all of ``targets``; ``answers``: acknowledgements bring bytes."""
        self._pending[op] = _Pending(len(targets), done)
        me = self.component.node.id
        for part, (node, access) in enumerate(targets):
            message = AtomicData(op, part, me, access, answers)
            self.machine.send(me, node, operands * access.nbytes, message, self.channel)

    def on_answer(self, reply: ReadReply | WriteAck) -> None:
        """Take an answer. UnsupportedError when nobody asked."""
        pending = self._pending.get(reply.op)
        if pending is None:
            raise UnsupportedError(
                f"{self.component.node.id} got an answer to operation {reply.op}, which it never began"
            )
        pending.left -= 1
        if not pending.left:
            del self._pending[reply.op]
            pending.done()
