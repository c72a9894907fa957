"""The values that a run stores for phase 2, and the user's options for them."""

from __future__ import annotations

from kernbench.common.errors import InputError
from kernbench.common.units import parse_size
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


@value
class DataOptions:
    """The user's options for values.

    ``data`` turns the storing of values on or off (None: as the bench declares). ``keep`` limits the stored bytes, for
    example to ``"2GiB"``.
    """

    data: bool | None = None
    zeros: bool = False
    keep: str | None = None

    def policy(self, *, verify: bool = False, sanitize: bool = False, bench: bool = True, share: int = 1) -> DataPolicy:
        """Return the policy of a run.

        ``bench`` is the default that the bench declares. ``share`` is the number of concurrent runs that share the
        limit.

        ``--data``, ``--verify-data`` and ``--sanitize`` store all values unless ``--keep`` sets a limit. Raises
        InputError for options that contradict each other.
        """
        needed = "--verify-data" if verify else "--sanitize" if sanitize else None
        if self.data is False and needed is not None:
            raise InputError(f"--no-data and {needed}, which needs data: give one of the two")
        if self.zeros and self.data is not False:
            raise InputError("--zeros is for runs without data: give --no-data --zeros")
        if self.keep is not None and self.data is False:
            raise InputError("--keep limits the stored data, and --no-data stores none: give one of the two")
        if self.keep is not None and sanitize:
            raise InputError("--sanitize needs all data: leave --keep out")
        keep = self.data if self.data is not None else needed is not None or bench
        most = KEEP_BYTES if self.data is None and needed is None else None
        if self.keep is not None:
            most = _parse_limit(self.keep)
        return DataPolicy(keep, None if most is None or not keep else most // share, self.zeros)


def _parse_limit(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise InputError(f"--keep: {error}") from None


UNSAID = DataOptions()
"""The options if the user sets none"""
