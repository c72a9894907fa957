"""Long collectives in a run that reuses launches: the first part is simulated, and the time of the rest passes.

A long collective repeats the same exchange of pieces. Its kernel runs on the first elements of each PE's parts, as many
on all ranks. The rest takes as much time for each byte, without the start: the time from the begin on the last rank
until the first piece has arrived.
"""

from __future__ import annotations

from dataclasses import replace

from kernbench.common.dtypes import dtype as element_type
from kernbench.common.values import state, value
from kernbench.core.log import Kind
from kernbench.engine.launch_counts import count_part, count_sip, first_end_ps
from kernbench.engine.machine import Machine
from kernbench.engine.passed_launches import Counts, ExtendedLaunch
from kernbench.messages.requests import KernelLaunchMsg
from kernbench.runtime_api.collective_calls import RankMeeting
from kernbench.runtime_api.collective_operations import StartedCollective

SIMULATED_BYTES = 512 << 10
"""Bytes of each PE's part of a block that are simulated"""
_ARRIVALS = (Kind.DMA_WRITE, Kind.IPCQ_COPY)
"""Rows at whose end a piece has arrived"""


@value
class LongCollectives:
    """The rule by which collectives of a run are shortened, and the machine that simulates them."""

    machine: Machine

    def shorten(self, operation: StartedCollective) -> StartedCollective:
        """Return ``operation``, or a part of it: the first elements of each part of a PE, if a part is long.

        The number depends on the size of the part alone, so both ends of a message agree.
        """
        counts = operation.counts
        if counts is None:
            return operation
        numbers = list(operation.config[counts.key])
        most = SIMULATED_BYTES // element_type(operation.config["dtype"]).itemsize
        at = [line + column for line in range(0, len(numbers), counts.columns) for column in counts.of_elements]
        total = sum(numbers[i] for i in at)
        for i in at:
            numbers[i] = min(numbers[i], most)
        short = sum(numbers[i] for i in at)
        if short == total:
            return operation
        config = {**operation.config, counts.key: tuple(numbers)}
        if operation.config["n_elem"] == total:
            config["n_elem"] = short
        return replace(operation, config=config, more=total / short - 1)

    def observe(self, message: KernelLaunchMsg, meeting: RankMeeting, more: float) -> KernelLaunchMsg:
        """Return the launch of a rank's part, whose end is ``more`` times its own time later."""
        return replace(message, on_device=_PartObserver(self.machine, meeting, message.targets[0][0], more))


@state(eq=False)
class _PartObserver:
    """The observer of a rank's launch that simulates a part of a collective.

    ``before``, ``first_row``: the counts of the SIP and the rows of the log at its begin. Other launches on the SIP at
    the same time are in the counts.
    """

    machine: Machine
    meeting: RankMeeting
    sip: int
    more: float
    before: Counts | None = None
    first_row: int = 0

    def begin(self, launch: int, now_ps: int) -> None:
        """Note the state of the machine; the launch is simulated."""
        self.meeting.begun_ps.append(now_ps)
        self.before, self.first_row = count_sip(self.machine, self.sip, with_neighbours=True), self.machine.log.n_rows

    def end(self, launch: int, now_ps: int) -> int:
        """Return the time in ps of the rest of the collective, and count its work."""
        assert self.before is not None, "a launch that ends has begun"
        counts = count_part(self.machine, self.sip, self.before, with_neighbours=True)
        self.machine.passed.extended[launch] = ExtendedLaunch(self.more, counts)
        arrived_ps = first_end_ps(self.machine, launch, _ARRIVALS, self.first_row, max(self.meeting.begun_ps))
        return round((now_ps - arrived_ps) * self.more)
