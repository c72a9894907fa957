"""The policy for data that a run stores for phase 2, and the number of values read.

Stored data cost memory of the simulator, but no simulated time. Phase 2 runs when a value is read. Replayed commands no
longer count towards the limit of stored data.
"""

from __future__ import annotations

from collections.abc import Callable

from kernbench.common.data_policy import DataPolicy
from kernbench.common.errors import NoDataError
from kernbench.common.units import format_ns, format_size, ps_to_ns
from kernbench.common.values import value
from kernbench.core.clock import NEVER
from kernbench.core.log import Log
from kernbench.engine.recorder import Recorder, strip_array

COMMAND_BYTES = 512
"""The bytes by which any stored command approaches the limit: its operands and its rows in the log"""


@value(kw_only=True)
class DataReport:
    """A report of the data that a run stored and of the values that were read.

    - ``kept``: True if values could be read to the end. ``stopped``: the reason why storage stopped, else empty.
    - ``values_read``: the number of elements read by the program, a comparison or a print. ``zeros_read``: the number
      of elements read as zeros.
    - ``operations``, ``nbytes``: the number of operations of phase 2, and the bytes of their results.
    """

    kept: bool
    zeros: bool = False
    stopped: str = ""
    values_read: int = 0
    zeros_read: int = 0
    operations: int = 0
    nbytes: int = 0

    def __str__(self) -> str:
        if self.stopped:
            return f"data: {self.stopped}"
        if not self.kept:
            zeros = f"; {_values(self.zeros_read)} read as zeros" if self.zeros_read else ""
            return f"data: none was kept{zeros}"
        computed = f"{self.operations:,} operations computed, {format_size(self.nbytes)}"
        if self.values_read:
            return f"data: {_values(self.values_read)} read; {computed}"
        return f"data: no value was read{f'; {computed}' if self.operations else ', so nothing was computed'}"


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count:,} values"


class Keeping:
    """The switch that stores the inputs of phase 2 up to a limit, and the count of values read.

    ``drop`` releases all data stored outside the log. The run calls ``drop`` once, at the limit. ``zeros_of``: the last
    subject that was read as zeros; empty if there is none.
    """

    __slots__ = (
        "_begin",
        "_drop",
        "_host_bytes",
        "_log",
        "_now",
        "_recorder",
        "policy",
        "stopped",
        "values_read",
        "zeros_of",
    )

    def __init__(
        self, policy: DataPolicy, recorder: Recorder, log: Log, now: Callable[[], int], drop: Callable[[], None]
    ) -> None:
        self.policy = policy
        self.stopped = ""
        self.values_read = 0
        self.zeros_of = ""
        self._recorder, self._log, self._now, self._drop = recorder, log, now, drop
        self._begin = 0  # number of commands that phase 2 has replayed
        self._host_bytes = 0
        recorder.on_full = self._stop
        self._set_limit()

    @property
    def keeps(self) -> bool:
        """True if values can be read."""
        return self.policy.keep and not self.stopped

    def hold(self, nbytes: int) -> None:
        """Add ``nbytes`` of host data to the stored bytes until their replay; stop storing data beyond the limit."""
        self._host_bytes += nbytes
        self._set_limit()
        if len(self._log.whats) >= self._recorder.most_commands:
            self._stop()

    def note_replay(self) -> None:
        """Record that phase 2 has replayed everything up to now."""
        self._begin, self._host_bytes = len(self._log.whats), 0
        self._set_limit()

    def read(self, n_values: int, subject: str) -> bool:
        """Count ``n_values`` that are read; return True for real values, False for zeros.

        Raises NoDataError, which names ``subject``, in a run that reads neither values nor zeros.
        """
        if not self.keeps and not self.policy.zeros:
            refusal = self.refusal(subject)
            more = "" if self.stopped else ", or with --no-data --zeros to read zeros"
            raise NoDataError(f"{refusal}{more}")
        self.values_read += n_values
        if not self.keeps:
            self.zeros_of = subject
        return self.keeps

    def refusal(self, subject: str) -> NoDataError:
        """Return the error for a read of ``subject`` in a run without data, also for readers that refuse zeros."""
        if self.stopped:
            return NoDataError(f"{subject}: there is no value to read: {self.stopped}; give a larger --keep, or --data")
        return NoDataError(f"{subject}: this run keeps no data, so there is no value to read: run it with --data")

    def _set_limit(self) -> None:
        most = self.policy.most_bytes
        room = NEVER if most is None else max(0, most - self._host_bytes + 1)
        self._recorder.most_commands = self._begin + -(-room // COMMAND_BYTES)

    def _stop(self) -> None:
        if not self.keeps:
            return
        most = self.policy.most_bytes
        assert most is not None, "only a limit is reached"
        self.stopped = (
            f"keeping stopped at {format_ns(ps_to_ns(self._now()))} simulated, past {format_size(most)} unread (--keep)"
        )
        recorder = self._recorder
        recorder.keep_data = False
        whats = self._log.whats
        whats[:] = [strip_array(item) for item in whats]
        self._drop()
