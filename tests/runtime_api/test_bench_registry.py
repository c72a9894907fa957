from __future__ import annotations

from typing import Literal

import pytest
from pydantic import PositiveInt

from kernbench.common.config import ConfigModel
from kernbench.common.errors import BenchError, ConfigError, UnknownNameError
from kernbench.runtime_api import bench_registry
from kernbench.runtime_api.bench_registry import BenchRegistry, NoParams


class Params(ConfigModel):
    m: PositiveInt = 4
    scale: float = 1.0
    dtype: Literal["f16", "f32"] = "f16"


class Incomplete(ConfigModel):
    m: int
    n: int


@pytest.fixture
def registry():
    return BenchRegistry()


def program(torch):
    return "ran"


def test_a_bench_is_found_by_name_and_still_a_function(registry):
    made = registry.bench("one-two", "what it does", params=Params)(program)
    assert registry.lookup("one-two") is registry.lookup("one_two") is made
    assert (made.name, made.description, made.params, made.evaluation) == ("one-two", "what it does", Params, False)
    assert made.file == __file__
    assert made(None) == "ran"
    registry.bench("another", "x", evaluation=True)(program)
    assert [each.name for each in registry.list_benches()] == ["another", "one-two"]
    assert registry.lookup("another").params is NoParams


def test_an_unknown_name_lists_what_there_is(registry):
    registry.bench("gemm-single-pe", "x")(program)
    words = r"unknown bench 'gem_single_pe'; there are: gemm-single-pe; did you mean 'gemm-single-pe'\?.*file\.py"
    with pytest.raises(UnknownNameError, match=words):
        registry.lookup("gem_single_pe")


@pytest.mark.parametrize("name", ["", "Gemm", "gemm_single", "1-gemm", "gemm-", "gemm--pe", "gemm pe"])
def test_a_malformed_name_fails_with_its_file(registry, name):
    with pytest.raises(BenchError, match=r"test_bench_registry\.py: .* write kebab-case"):
        registry.bench(name, "x")(program)


def test_a_name_that_is_taken_fails_with_both_files(registry):
    registry.bench("same", "x")(program)
    with pytest.raises(BenchError, match=r"test_bench_registry.py: a bench 'same' exists already, in .*registry\.py"):
        registry.bench("same", "x")(program)


@pytest.mark.parametrize("description", ["", "  ", "two\nlines"])
def test_a_description_is_one_line(registry, description):
    with pytest.raises(BenchError, match="description of one line"):
        registry.bench("x", description)(program)


def test_every_parameter_has_a_default(registry):
    with pytest.raises(BenchError, match="without a valid default: m, n"):
        registry.bench("x", "x", params=Incomplete)(program)


def test_parameters_are_set_by_path_and_typed_like_yaml(registry):
    made = registry.bench("x", "x", params=Params)(program)
    assert made.make_params() == Params()
    assert made.make_params(["bench.m=8", "bench.dtype=f32", "bench.scale=2"]) == Params(m=8, scale=2.0, dtype="f32")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bench.m=0", "bench.m: found 0, must be greater than 0"),
        ("bench.m=text", "bench.m: found 'text', must be a whole number"),
        ("bench.dtype=f61", "did you mean 'f16'"),
        ("bench.scala=3", "unknown key 'scala'; did you mean 'scale'"),
        ("bench.m", "no '='"),
    ],
)
def test_parameters_that_are_wrong(registry, text, words):
    made = registry.bench("x", "x", params=Params)(program)
    with pytest.raises(ConfigError) as caught:
        made.make_params([text])
    assert words in str(caught.value)
    assert f"--set {text}" in str(caught.value)


def test_a_bench_without_parameters_takes_none(registry):
    made = registry.bench("x", "x")(program)
    with pytest.raises(ConfigError, match="no keys are allowed here"):
        made.make_params(["bench.m=1"])


class Point:
    """An entry point of another package."""

    group, value = "kernbench.benches", "their.package"

    def __init__(self, name, load):
        self.name, self.load = name, load


def test_packages_add_benches_when_one_is_looked_up(monkeypatch):
    registry = BenchRegistry("kernbench.benches")
    loaded = []

    def load():
        loaded.append(1)
        registry.bench("theirs", "x")(program)

    points = {"kernbench.benches": [Point("a", load)]}
    monkeypatch.setattr(bench_registry.importlib.metadata, "entry_points", lambda group: points[group])
    assert not loaded
    assert registry.lookup("theirs").name == "theirs"
    registry.list_benches()
    assert loaded == [1]


def test_a_package_that_fails_is_named(monkeypatch):
    def load():
        raise ImportError("no module named frobnicate")

    monkeypatch.setattr(bench_registry.importlib.metadata, "entry_points", lambda group: [Point("a", load)])
    with pytest.raises(BenchError, match=r"entry point a = 'their\.package'.*frobnicate"):
        BenchRegistry("kernbench.benches").lookup("x")
