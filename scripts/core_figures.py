"""Print the figures of the simulator's core: its size, its names, how far a command travels, what a start costs.

usage: python scripts/core_figures.py

Calls and files are counted, so they are the same everywhere. Instructions need valgrind, and depend on the versions of
Python and of the packages that are imported.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

import kernbench
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.runtime_api.context import NoParams, RuntimeContext

PACKAGE = Path(kernbench.__file__).parent
ROOMS = ("messages", "triton_emu", "ccl", "numerics", "engine", "components", "transport", "core")
COMMANDS = (("--help",), ("list",), ("run", "--bench", "hello-send"))
PARTICIPLE = re.compile(
    r"(?!(?:feed|need|seed|speed)$)[a-z]+ed|begun|bought|brought|built|come|done|drawn|driven|fallen|found|given|gone|held|kept"
    r"|known|left|lost|made|met|paid|said|seen|sent|shown|spent|stood|taken|thrown|told|understood|woken|written"
)
"""First words of names that a function should not have: it does something, so it begins with a verb"""
LOAD, MESSAGES, TILE = "a load and its wait", "two queue messages", "a streamed tile"
SHORT, LONG = 8, 24
"""Tiles of the two products whose difference is a tile"""


class Size(NamedTuple):
    """What files hold; ``participles`` are the names of functions that begin with one."""

    lines: int
    files: int
    classes: int
    participles: tuple[str, ...]


class Length(NamedTuple):
    """How far a trip goes: calls of Python functions of kernbench, and the files that these are in."""

    calls: int
    files: int


class Trip:
    """Counts what is called inside a ``with``, in the files of kernbench."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self.calls.clear()
        sys.setprofile(self._count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{PACKAGE}{os.sep}"):
            self.calls[frame.f_code.co_filename] += 1

    @property
    def length(self) -> Length:
        """What was counted last."""
        return Length(self.calls.total(), len(self.calls))


def trips() -> dict[str, Length]:
    """Measure the trips, each the second of its kind: what is made once is not counted."""
    found: dict[str, Length] = {}
    trip = Trip()

    def load(t: int, n: int, *, tl: Any) -> None:
        if tl.program_id(0) == 0:
            tl.wait(tl.load(t, n, "f16"))
            with trip:
                x = tl.load(t, n, "f16")
                tl.wait(x)
            found[LOAD] = trip.length

    def send(t: int, n: int, *, tl: Any) -> None:
        if tl.program_id(0) != 0:
            for _ in range(2):
                tl.send("E", tl.recv("W", n, "f16"))
            return
        x = tl.load(t, n, "f16")
        tl.wait(x)
        tl.send("E", x)
        tl.recv("W", n, "f16")
        with trip:
            tl.send("E", x)
            tl.recv("W", n, "f16")
        found[MESSAGES] = trip.length

    def multiply(a: int, b: int, c: int, tiles: tuple[int, int], *, tl: Any) -> None:
        lengths = []
        for n_tiles in (tiles[0], *tiles):
            k = 64 * n_tiles
            with trip:
                tl.composite("gemm", tl.ref(a, (32, k), "f16"), tl.ref(b, (k, 32), "f16"), out_ptr=c)
                tl.fence()
            lengths.append(trip.length)
        _, short, long = lengths
        found[TILE] = Length(round((long.calls - short.calls) / (tiles[1] - tiles[0])), long.files)

    def program(torch: RuntimeContext[NoParams]) -> None:
        n, two = 32, DPPolicy(pe="row_wise", num_cubes=1, num_pes=2)
        t = torch.zeros(2, n, dtype="f16", dp=two, name="t")
        torch.launch("load", load, t, n)
        plan = torch.install_ipcq("ring_allreduce_tcm", world_size_override=2)
        torch.launch("send", send, t, n)
        torch.uninstall_ipcq(plan)
        a, b, c = (torch.zeros(*shape, dtype="f16", name="t") for shape in ((32, 64 * LONG), (64 * LONG, 32), (32, 32)))
        torch.launch("multiply", multiply, a, b, c, (SHORT, LONG))

    run_bench(topology="default", bench_fn=program).raise_for_status()
    return found


def instructions(*arguments: str) -> int | None:
    """Count the instructions of a command whose modules are compiled; None without valgrind."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None
    command = [sys.executable, "-c", "from kernbench.cli.main import entry; entry()", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/compiled", "PYTHONHASHSEED": "0"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        counted = [valgrind, "--tool=callgrind", f"--callgrind-out-file={folder}/callgrind.out", *command]
        for each in (command, counted):
            done = subprocess.run(each, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found is not None, "callgrind says what it has collected"
    return int(found[1])


def size_of(folder: Path) -> Size:
    """Count what the Python files of a folder hold."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    return Size(
        lines=sum(text.count("\n") for text in texts),
        files=len(texts),
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        participles=tuple(n.name for n in nodes if isinstance(n, ast.FunctionDef) and _is_participle(n.name)),
    )


def homonyms() -> tuple[str, ...]:
    """Return the names of types in the rooms that stand for several: one is defined in another file as well."""
    files = {path: set(_types(ast.parse(path.read_text(encoding="utf-8")))) for path in sorted(PACKAGE.rglob("*.py"))}
    times = Counter(name for names in files.values() for name in names)
    inside = {name for path, names in files.items() if path.relative_to(PACKAGE).parts[0] in ROOMS for name in names}
    return tuple(sorted(name for name in inside if times[name] > 1))


def _types(tree: ast.Module) -> Iterator[str]:
    """Yield the names of classes and of aliases of types, without an underscore before them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            yield ast.unparse(node.target).lstrip("_")


def _is_participle(name: str) -> bool:
    return PARTICIPLE.fullmatch(name.strip("_").partition("_")[0]) is not None


def main() -> None:
    """Print all of it."""
    sizes = {room: size_of(PACKAGE / room) for room in ROOMS}
    print(f"{'room':12} {'lines':>7} {'files':>6} {'classes':>8} {'participles':>12}")
    for room, size in sizes.items():
        print(f"{room:12} {size.lines:7,} {size.files:6} {size.classes:8} {len(size.participles):12}")
    lines, files, classes, participles = zip(*sizes.values(), strict=True)
    print(f"{'all':12} {sum(lines):7,} {sum(files):6} {sum(classes):8} {sum(map(len, participles)):12}\n")
    names = homonyms()
    print(f"{len(names)} names of types in these rooms stand for several: {', '.join(names)}\n")
    for name, length in trips().items():
        print(f"{name}: {length.calls} calls in {length.files} files")
    for arguments in COMMANDS:
        count = instructions(*arguments)
        said = "not counted, there is no valgrind" if count is None else f"{count / 1e9:.3f} G instructions"
        print(f"kernbench {' '.join(arguments)}: {said}")


if __name__ == "__main__":
    main()
