"""CPUs of the control path: one message at a time, ``overhead_ns`` each, in the order they arrive."""

from __future__ import annotations

from kernbench.core.log import NONE, By, Cause
from kernbench.engine.machine import Component, Machine
from kernbench.messages.control import ControlMessage
from kernbench.topology.graph import Node
from kernbench.transport import Transfer


class SerialCpu(Component):
    """A part that handles messages serially: ``handle`` is called when its turn is over.

    ``cause``: after what it does what it does; while it handles a message, that.
    """

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.cause: Cause = (NONE, By.NOTHING)
        self._free_at = 0
        self._handling_ps = self.overhead_ps

    @property
    def handles_serially(self) -> bool:
        """Its overhead is its own time, not the link's."""
        return True

    def receive(self, message: object, transfer: Transfer) -> None:
        """Queue the message for handling."""
        if not self._handling_ps:
            self._handle(transfer)
            return
        self._free_at = max(self._free_at, self.clock.time) + self._handling_ps
        self.clock.call_at(self._free_at, self._handle, transfer)

    def _handle(self, transfer: Transfer) -> None:
        row = transfer.row
        if row >= 0:
            self.machine.log.close(row, self.clock.time)
        self.cause = row, By.ORDER
        self.handle(transfer.arg)

    def handle(self, message: object) -> None:
        """Act on a message."""
        raise NotImplementedError

    def tell(self, dst: str, message: ControlMessage) -> None:
        """Send a message of the control path to another part."""
        self.machine.send_control(self.node.id, dst, message, self.cause)
