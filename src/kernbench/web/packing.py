"""Numbers for the page: a JSON head and sections of variable-length integers, compressed, as text."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
Ints: TypeAlias = npt.NDArray[np.int64]

_LENGTH_BYTES = 4
_PAYLOAD_BITS = 7
_MORE = 0x80
_ZEROS = np.zeros(1, dtype=np.int64)


def varints(values: npt.ArrayLike) -> bytes:
    """Whole numbers from 0 up as LEB128: seven bits a byte, the lowest first, the top bit says that more follow."""
    rest = np.asarray(values, dtype=np.int64)
    if rest.size == 0:
        return b""
    if int(rest.min()) < 0:
        raise ValueError(f"varints have no sign, and one value is {int(rest.min())}")
    n_bytes = np.ones(rest.size, dtype=np.int64)
    for bits in range(_PAYLOAD_BITS, 63, _PAYLOAD_BITS):
        n_bytes += rest >= 1 << bits
    first = np.concatenate(([0], np.cumsum(n_bytes)))
    out = np.zeros(first[-1], dtype=np.uint8)
    for place in range(int(n_bytes.max())):
        here = n_bytes > place
        more = np.where(n_bytes[here] > place + 1, _MORE, 0)
        out[first[:-1][here] + place] = (rest[here] >> _PAYLOAD_BITS * place) & (_MORE - 1) | more
    return out.tobytes()


def sparse_rows(rows: Iterable[Ints | None]) -> bytes:
    """Rows of counts one after another, each as ``sparse`` has it; None: a row of zeros."""
    found = [_ZEROS if row is None else sparse(row) for row in rows]
    return varints(np.concatenate(found)) if found else b""


def sparse(row: Ints) -> Ints:
    """A row of counts as pairs (zeros skipped, value), for rows that are mostly zeros, after the number of pairs."""
    at = np.flatnonzero(row)
    skipped = np.diff(at, prepend=-1) - 1
    return np.concatenate(([at.size], np.column_stack((skipped, row[at])).ravel()))


class Pack:
    """Sections by name, and at the end one text of all of them."""

    def __init__(self) -> None:
        self._blobs: list[bytes] = []
        self._places: dict[str, list[int]] = {}
        self._length = 0

    def add(self, name: str, content: bytes) -> None:
        """Put a section in. ValueError when its name is taken."""
        if name in self._places:
            raise ValueError(f"section {name!r} is there already")
        self._places[name] = [self._length, len(content)]
        self._blobs.append(content)
        self._length += len(content)

    def text(self, head: Mapping[str, Json]) -> str:
        """Base64 of zlib of: length of the head (4 bytes, little-endian), the head as JSON, the sections.

        The head gets ``sections``: name to [offset behind the head, length].
        """
        whole = {**head, "sections": self._places}
        words = json.dumps(whole, separators=(",", ":"), allow_nan=False).encode()
        content = len(words).to_bytes(_LENGTH_BYTES, "little") + words + b"".join(self._blobs)
        return base64.b64encode(zlib.compress(content, 9)).decode("ascii")
