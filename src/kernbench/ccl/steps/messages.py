"""What a collective's messages are made of: element type, reduction, and how many elements travel at once."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from kernbench.common.dtypes import dtype as element_type
from kernbench.common.errors import InputError, UnknownNameError

ReduceName: TypeAlias = Literal["sum", "max", "min", "avg"]
REDUCE_OPS: tuple[ReduceName, ...] = get_args(ReduceName)
MESSAGE_KEYS = ("reduce_op", "chunk_size")
"""What ``message_args`` takes of an algorithm's configuration, for its ``config_keys``."""
SLOT_BYTES = 4096
SEGMENT_BYTES = 2 << 20
"""How much of a tensor a kernel holds in scratch at a time."""


def on_the_way(nbytes: int, each: int) -> int:
    """How many messages of ``each`` bytes it takes to have ``nbytes`` on the way, while one more is being added."""
    return 1 - -nbytes // each


class Messages(NamedTuple):
    """Messages of up to ``chunk`` elements of ``dtype``, reduced by ``op``."""

    dtype: str
    op: str
    chunk: int

    @property
    def nbytes(self) -> int:
        """Bytes of a full message."""
        return self.chunk * element_type(self.dtype).itemsize

    def combine(self, a: Any, b: Any, tl: Any) -> Any:
        """Two contributions as one."""
        if self.op == "max":
            return tl.maximum(a, b)
        return tl.minimum(a, b) if self.op == "min" else a + b

    def finish(self, x: Any, contributions: int, tl: Any) -> Any:
        """The result of reducing so many contributions to ``x``: for ``avg`` their mean, rounded once.

        Of integers towards zero.
        """
        if self.op != "avg" or contributions == 1:
            return x
        # The number of contributions may be more than a narrow type can say.
        wide = tl.cast(x, "f32" if x.dtype.is_float else "i32")
        return tl.cast(wide / contributions, x.dtype)

    def segment(self, share: int = 1) -> int:
        """Elements that fit in a ``share``-th of what is held at a time."""
        return max(self.chunk, SEGMENT_BYTES // (share * element_type(self.dtype).itemsize))


def message_args(
    *,
    dtype: object = "f32",
    reduce_op: str = "sum",
    slot_size: int = SLOT_BYTES,
    chunk_size: int | None = None,
    **_: object,
) -> tuple[str, str, int]:
    """The fields of ``Messages`` for a configuration; ``chunk_size``, in bytes, is ``slot_size`` when not given.

    UnknownNameError for a dtype or a reduction that does not exist; InputError for a chunk that fits no slot.
    """
    item = element_type(dtype)
    if reduce_op not in REDUCE_OPS:
        raise UnknownNameError("reduce_op", reduce_op, REDUCE_OPS)
    nbytes = slot_size if chunk_size is None else chunk_size
    if not item.itemsize <= nbytes <= slot_size:
        raise InputError(
            f"chunk_size {nbytes}: a message has at least one element ({item.itemsize} bytes of {item}) and fits a "
            f"slot (slot_size {slot_size})"
        )
    return item.name, reduce_op, nbytes // item.itemsize
