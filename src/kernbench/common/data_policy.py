"""The values that a run stores for phase 2."""

from __future__ import annotations

from kernbench.common.errors import InputError
from kernbench.common.values import value

KEEP_BYTES = 1 << 30
"""Default limit of the command line for values that no program has read yet, in bytes"""


@value
class DataPolicy:
    """The values that a run stores.

    With ``keep`` the run stores all values that phase 2 needs, but at most ``most_bytes`` of values that no program has
    read yet (None: no limit). Without ``keep``, or past the limit, a read of a value raises NoDataError, or with
    ``zeros`` returns zeros. Raises InputError for ``zeros`` with ``keep``, and for a negative limit.
    """

    keep: bool = True
    most_bytes: int | None = None
    zeros: bool = False

    def __post_init__(self) -> None:
        if self.keep and self.zeros:
            raise InputError("a run that keeps data reads its values, not zeros")
        if self.most_bytes is not None and self.most_bytes < 0:
            raise InputError(f"most_bytes is {self.most_bytes}, must be at least 0")
