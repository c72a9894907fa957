"""What is observed of a machine beside its log, when somebody asks: what its transfers are, and its memories' turns."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from kernbench.core.log import NONE, Log
from kernbench.core.observed import BankTime, Carries, Observed
from kernbench.engine.recorder import Recorder
from kernbench.messages.fabric import QueueArrival, QueueData, ReadReply, ReadRequest, WriteAck, WriteData
from kernbench.transport import Network, Transfer
from kernbench.transport.watch import About

AccessMessage: TypeAlias = ReadRequest | WriteData


class Observation:
    """Has transfers, turns of memories and, with ``links``, what links carry kept in ``tables``."""

    __slots__ = ("_asked", "_recorder", "tables")

    def __init__(self, log: Log, recorder: Recorder, network: Network, *, links: bool) -> None:
        self.tables = Observed(links=links)
        self._recorder = recorder
        self._asked: dict[tuple[int, int], int] = {}  # the transfer that asked for a part of an operation
        network.watch.begin(self.tables, log.part, self._about)

    def turn(self, asked: AccessMessage, server: Hashable, start_ps: int, end_ps: int) -> None:
        """``server`` of a memory works on an access.

        A turn that is cut short for another was announced with the end that it would have had.
        """
        self.tables.open_turn(self._asked[asked.op, asked.part], server, start_ps, end_ps)

    def turn_in_banks(
        self, asked: AccessMessage, server: Hashable, span: tuple[int, int], waited: bool, took: BankTime
    ) -> None:
        """The same of a slice with banks, which has turns overlap: from when it had its bus, and what it took."""
        self.tables.open_turn_in_banks(self._asked[asked.op, asked.part], server, span, waited, took)

    def cut_in_banks(self, asked: AccessMessage, span: tuple[int, int], took: BankTime) -> None:
        """Its last turn there is over earlier."""
        self.tables.cut_turn(self._asked[asked.op, asked.part], span, took)

    def _about(self, transfer: Transfer) -> About:
        match message := transfer.arg:
            case ReadReply():
                return Carries.REPLY, NONE, self._asked[message.op, message.part]
            case WriteAck():
                return Carries.ACK, NONE, self._asked[message.op, message.part]
            case QueueArrival(data=data):
                return Carries.DOORBELL, data.row, self._asked[data.op, data.part]
            case ReadRequest() | WriteData():
                self._asked[message.op, message.part] = self.tables.n_transfers
                if isinstance(message, QueueData):
                    return Carries.MESSAGE, message.sent, NONE
                what = Carries.REQUEST if isinstance(message, ReadRequest) else Carries.WRITE
                return what, self._recorder.row_of(message.op), NONE
            case _:
                return (Carries.OTHER if transfer.row < 0 else Carries.CONTROL), transfer.row, NONE
