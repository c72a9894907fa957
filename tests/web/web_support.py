"""What the tests of the page share: a small bench, and a reader that does not know how pages are written."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernbench.library.machines import load_machine
from kernbench.library.pages import observed_run
from kernbench.library.running import simulate
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.prepared_run import PreparedRun
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology
from kernbench.web.activity import ObservedRun

GEMM = ("bench.m=64", "bench.k=64", "bench.n=64")
"""Parameters that make gemm-single-pe small."""


def numbers(content: bytes) -> Iterator[int]:
    """The LEB128 numbers in ``content``."""
    value = shift = 0
    for byte in content:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0


@dataclass(frozen=True)
class PageData:
    """The head and the sections of a page."""

    head: dict[str, Any]
    body: bytes

    def section(self, name: str) -> list[int]:
        """The numbers of a section."""
        at, length = self.head["sections"][name]
        return list(numbers(self.body[at : at + length]))

    def rows(self, name: str, bins: int) -> list[list[int]]:
        """The rows of a section of sparse rows."""
        found, left = [], iter(self.section(name))
        for pairs in left:
            row, at = [0] * bins, -1
            for _ in range(pairs):
                at += 1 + next(left)
                row[at] = next(left)
            found.append(row)
        return found


def read_page(page: str) -> PageData:
    """The data in the text of a page."""
    match = re.search(r'id="data">([^<]*)</script>', page)
    assert match is not None
    content = zlib.decompress(base64.b64decode(match[1]))
    end = 4 + int.from_bytes(content[:4], "little")
    return PageData(json.loads(content[4:end]), content[end:])


def observe_run(machine: Topology, bench: Bench, device: DeviceSelector, params: Sequence[str] = ()) -> ObservedRun:
    """Run a bench, and what was seen of it, as a page takes it."""
    request = PreparedRun(
        bench=bench, machine=load_machine(machine).topology, params=params, device=str(device), queues=False
    )
    return observed_run(simulate(request))


def load_and_copy(torch: Any) -> None:
    """Load, as a program of PyTorch does before it computes, then copy."""
    torch.zeros(64, dtype="f16", name="weights")
    torch.operators.end_loading("mm model.py:4")
    for name in ("x", "y"):
        torch.zeros(64, dtype="f16", name=name)
