"""Patterns of accesses to one slice: sequential, random, strided, half of them writes, copies.

Names: ``seq``, ``seq_write``; ``random_SIZE``; ``stride_STEP_SIZE``, each of these with ``_5050`` if half are writes;
``seq_copy_SIZE_alt`` reads SIZE bytes and writes as many far away in turn, with ``_bankoff`` half of all banks further.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import prod

from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import AddressMapping, HbmTiming

PATTERNS = (
    *("seq", "seq_write"),
    *(f"random_{size}" for size in ("32B", "64B", "256B", "1KB", "4KB")),
    *("random_64B_5050", "random_1KB_5050"),
    *(f"stride_{step}B_64B" for step in (128, 256, 512, 1024, 4096, 16384)),
    "stride_1024B_64B_5050",
    *(f"seq_copy_{size}_alt{off}" for size in ("64B", "1KB", "4KB") for off in ("", "_bankoff")),
)
SMALL = 64
"""Bytes of an access of a sequential pattern"""

Step = tuple[Access, bool]
"""An access, and whether it writes"""


def accesses(pattern: str, room: int, bank_off: int, seed: int) -> Iterator[Step]:
    """The accesses of a pattern in ``room`` bytes of memory, for ever."""
    name, *rest = pattern.split("_")
    mixed = rest[-1:] == ["5050"]
    if name == "random":
        return _random(_bytes(rest[0]), room, mixed, random.Random(seed))
    if name == "stride":
        return _stride(_bytes(rest[0]), _bytes(rest[1]), room, mixed, random.Random(seed))
    if rest[:1] == ["copy"]:
        return _copy(_bytes(rest[1]), room, bank_off if rest[-1] == "bankoff" else 0)
    return _sequential(room, write=rest == ["write"])


def half_of_banks(banks: HbmTiming, num_pcs: int, mapping: AddressMapping) -> int:
    """Bytes after which half of the banks have been passed."""
    sizes = {"pc": num_pcs, "stack": banks.stacks, "group": banks.groups, "bank": banks.banks, "column": banks.columns}
    names = [entry.field for entry in mapping]
    last = max(names.index(name) for name in ("pc", "stack", "group", "bank"))
    return prod(entry.values or sizes[entry.field] for entry in mapping[: last + 1]) // 2 * banks.burst_bytes


def _bytes(text: str) -> int:
    return int(text[:-2]) * 1024 if text.endswith("KB") else int(text[:-1])


def _sequential(room: int, *, write: bool) -> Iterator[Step]:
    while True:
        for pa in range(0, room - SMALL + 1, SMALL):
            yield Access(pa, SMALL), write


def _random(size: int, room: int, mixed: bool, rng: random.Random) -> Iterator[Step]:
    while True:
        yield Access(rng.randrange(room // size) * size, size), mixed and rng.random() < 0.5


def _stride(step: int, size: int, room: int, mixed: bool, rng: random.Random) -> Iterator[Step]:
    while True:
        for pa in range(0, room - size + 1, step):
            yield Access(pa, size), mixed and rng.random() < 0.5


def _copy(size: int, room: int, bank_off: int) -> Iterator[Step]:
    half = room // 2
    while True:
        for pa in range(0, half - bank_off - size + 1, size):
            yield Access(pa, size), False
            yield Access(pa + half + bank_off, size), True
