from __future__ import annotations

import textwrap

import pytest

from kernbench.common.errors import BenchError, UnknownNameError
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.bench_registry import BenchRegistry, load_bench
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.topology.builder import resolve_topology


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def test_a_name_is_looked_up():
    registry = BenchRegistry()
    made = registry.bench("a-b", "x")(print)
    assert load_bench("a_b", registry) is made
    with pytest.raises(UnknownNameError):
        load_bench("nothing", registry)


def test_a_plain_function_of_a_file(write):
    path = write('''
        """A file."""
        def run(torch):
            """What it does.

            In detail.
            """
            return torch
        def other(torch):
            return "other"
    ''')
    found = load_bench(str(path))
    assert (found.name, found.description, found.file) == ("mine", "What it does.", str(path))
    assert found(5) == 5
    assert load_bench(f"{path}:other")(5) == "other"
    assert load_bench(f"{path}:other").description == "other of mine.py"


def test_a_decorated_function_has_its_parameters_and_can_be_loaded_again(write):
    path = write("""
        from __future__ import annotations
        from dataclasses import dataclass
        from kernbench.common.config import ConfigModel
        from kernbench.runtime_api.bench_registry import bench
        import size_of_mine

        @dataclass(slots=True)
        class Point:
            x: int

        class Params(ConfigModel):
            m: int = size_of_mine.SIZE

        @bench("my-own-bench", "mine", params=Params)
        def run(torch):
            return Point(3).x
    """)
    write("SIZE = 7", "size_of_mine.py")
    for _ in range(2):
        found = load_bench(str(path))
        assert (found.name, found.make_params().model_dump(), found(None)) == ("my-own-bench", {"m": 7}, 3)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BenchError, match=r"gone\.py: no such file \(looked from"):
        load_bench(str(tmp_path / "gone.py"))


def test_a_function_that_is_not_there(write):
    path = write("from math import sqrt\ndef runs(torch): ...\n")
    with pytest.raises(BenchError, match=r"mine\.py has no 'run'; did you mean 'runs'\? there are: runs$"):
        load_bench(str(path))
    with pytest.raises(BenchError, match="it defines no function"):
        load_bench(str(write("x = 1", "empty.py")))


def test_what_is_no_program(write):
    path = write("run = 3\ndef two(torch, size): ...\n")
    with pytest.raises(BenchError, match="'run' is of type int, not a function"):
        load_bench(str(path))
    with pytest.raises(BenchError, match=r"'two' cannot be called with one argument, torch: missing.*'size'"):
        load_bench(f"{path}:two")
    path = write("async def later(torch): ...\ndef parts(torch):\n    yield 1\n")
    for name in ("later", "parts"):
        with pytest.raises(BenchError, match=f"'{name}' does nothing when it is called"):
            load_bench(f"{path}:{name}")


def test_a_file_that_is_not_python(write):
    path = write("def run(torch):\n    x = = 1\n")
    with pytest.raises(BenchError, match=r"mine\.py:2: not Python: invalid syntax"):
        load_bench(str(path))


def test_a_file_that_fails_when_imported(write):
    path = write("def helper():\n    return 1 / 0\n\nhelper()\n")
    with pytest.raises(BenchError, match=r"mine\.py:2: importing it failed: ZeroDivisionError") as caught:
        load_bench(str(path))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_malformed_bench_in_a_file_is_its_own_error(write):
    path = write("""
        from kernbench.runtime_api.bench_registry import bench
        @bench("Bad Name", "x")
        def run(torch): ...
    """)
    with pytest.raises(BenchError, match="write kebab-case"):
        load_bench(str(path))


def test_a_file_that_asks_for_the_machine_is_imported_by_the_run(write):
    path = write("""
        from kernbench.runtime_api.context import require_context
        NOW = require_context().engine.now
        def run(torch):
            torch.ones(4)
            return NOW
    """)
    made = load_bench(str(path))
    result = run_bench(
        topology=resolve_topology("one-cube"), bench_fn=made, engine_factory=lambda machine, _: GraphEngine(machine)
    )
    result.raise_for_status()
    assert (made.name, result.value) == ("mine", 0.0)


def test_parameters_are_read_before_there_is_a_machine(write):
    path = write("""
        from kernbench.common.config import ConfigModel
        from kernbench.runtime_api.bench_registry import bench
        from kernbench.runtime_api.context import require_context
        class Params(ConfigModel):
            m: int = 4
        require_context()
        @bench("mine", "x", params=Params)
        def run(torch): ...
    """)
    made = load_bench(str(path), BenchRegistry())
    result = run_bench(
        topology=resolve_topology("one-cube"), bench_fn=made, engine_factory=lambda machine, _: GraphEngine(machine)
    )
    assert isinstance(result.error, BenchError)
    assert "has parameters, which are read before a machine exists" in str(result.error)
