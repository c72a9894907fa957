"""What a verdict promises, an experiment gives: a resource made 10 % faster, and the program simulated again."""

from __future__ import annotations

import pytest

from interventions import Experiment, broken_promises, spread
from kernbench.runtime_api.bench_registry import load_bench

QUICK = ("hello-send", "matmul-composite", "qkv-gemm", "attention", "ipcq-allreduce")
SLOW = ("gemm-single-pe", "qkv-gemm-multi-pe", "tp-block", "tp-mlp", "ccl-allreduce", "va-offset-verify")
VARIANTS = ("ref_ref", "load_ref", "load_load")


def of_bench(name: str, *params: str, machine: str = "default") -> Experiment:
    return Experiment(load_bench(name), spread(machine), params)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_bench_keeps_the_promises_of_its_verdict(name: str) -> None:
    assert [*broken_promises(of_bench(name))] == []


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_of_a_product_keeps_them(variant: str) -> None:
    assert [*broken_promises(of_bench("matmul-composite", f"bench.variant={variant}"))] == []
