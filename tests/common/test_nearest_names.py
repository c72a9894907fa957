"""The nearest name to one that does not exist."""

from __future__ import annotations

import pytest

from kernbench.common.errors import UnknownNameError, close_to, there_are

KNOWN = ("load", "store", "dot", "atomic-add", "gemm-single-pe")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lod", "load"),
        ("laod", "load"),
        ("LOAD", "load"),
        ("sotre", "store"),
        ("atomic_add", "atomic-add"),
        ("gemm-singel-pe", "gemm-single-pe"),
    ],
)
def test_the_nearest_name(name: str, meant: str) -> None:
    assert close_to(name, KNOWN) == f"did you mean {meant!r}? "


@pytest.mark.parametrize("name", ["", "ld", "do", "frobnicate", "x" * 10_000])
def test_no_name_is_near(name: str) -> None:
    assert close_to(name, KNOWN) == ""


def test_what_is_said_of_a_name_that_is_none() -> None:
    assert there_are("lod", KNOWN[:2]) == "there are: load, store; did you mean 'load'?"
    assert there_are("lod", KNOWN[:2], "or yours") == "there are: load, store; did you mean 'load'? or yours"
    assert there_are("frobnicate", KNOWN[:2]) == "there are: load, store"
    assert there_are("frobnicate", KNOWN[:2], "or yours") == "there are: load, store; or yours"


def test_every_unknown_name_says_the_nearest() -> None:
    error = UnknownNameError("operation", "lod", KNOWN[:2])
    assert str(error) == "unknown operation 'lod'; there are: load, store; did you mean 'load'?"
