"""What the verdict on a product of PyTorch says is held to experiments, as that on benches and random programs is."""

from __future__ import annotations

from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402

from frontends.torch_products import random_torch_product  # noqa: E402
from interventions import Experiment, broken_promises, spread  # noqa: E402

SEEDS = 40
EXCEPTIONS = {
    "in a slice's queue others come first": (24, 37),
    "more of the path than is seen waits for links, since a message holds up others of another way": (21,),
    "a port of a slice and a link behind it carry the same bytes": (31,),
}
"""Products that do not keep all promises of a change of 10 %, by the reason"""


def square(_: Any) -> None:
    a = torch.randn(256, 256).half().to("ahbm")
    torch.mm(a, a)


def test_bytes_that_wait_for_a_link_come_no_sooner_from_a_faster_memory() -> None:
    """All PEs read the same matrix: its slices are busy, and so are the links, where packets wait from the begin on."""
    experiment = Experiment(square, spread("one-cube"))
    assert "HBM" not in experiment.launch.verdict.resources
    names = ["HBM", "NoC", "GEMM", "fetch"]
    assert [*broken_promises(experiment, names)] == []
    gains = {name: experiment.gain(name) for name in names}
    assert gains["NoC"] == pytest.approx(experiment.path_shares["NoC"] * experiment.time_ps / 11, rel=0.4)


@pytest.mark.slow
@pytest.mark.xfail(reason="seeds 1, 6, 33 gain 0.7 to 1.3 % of the launch more than promised")
def test_random_products_keep_the_promises_of_their_verdicts() -> None:
    broken = {}
    for seed in range(SEEDS):
        experiment = random_torch_product(seed)
        if lines := [*broken_promises(experiment, experiment.foremost)]:
            broken[seed] = lines
    known = {seed for seeds in EXCEPTIONS.values() for seed in seeds}
    assert broken.keys() <= known, "\n".join(f"{seed}: {'; '.join(broken[seed])}" for seed in broken.keys() - known)
