"""JSON documents are rounded by the names of their figures."""

from __future__ import annotations

import json
import math

import pytest

from kernbench.common.files import FIGURES, json_text, round_figures

NOISE = 103.53600000000002


@pytest.mark.parametrize("name", ["ns", "sim_ns", "launch.ns", "phase.copy.busy_ns", "rate_per_ns"])
def test_times_are_whole_picoseconds(name: str) -> None:
    assert round_figures({name: NOISE}) == {name: 103.536}
    assert round_figures({name: [NOISE, (NOISE, None)]}) == {name: [103.536, [103.536, None]]}


def test_what_has_no_name_of_its_own_has_that_above() -> None:
    document = {"latency_ns": {"mean": 0.12345, "samples": 3, "utilisation": 0.123456789}}
    assert round_figures(document, FIGURES) == {"latency_ns": {"mean": 0.123, "samples": 3, "utilisation": 0.123457}}
    assert round_figures([{"a": [{"b_ns": 1.00049}]}]) == [{"a": [{"b_ns": 1.0}]}]


def test_shares_and_bandwidths_are_short_for_a_reader_and_in_full_in_data() -> None:
    document = {"stream_gbs": 204.79999999999998, "occupancy": 1 / 3}
    assert round_figures(document, FIGURES) == {"stream_gbs": 204.8, "occupancy": 0.333333}
    assert round_figures(document) == document


def test_other_figures_stay() -> None:
    """Errors of numbers may be as small as they like; integers, texts and truths are what they are."""
    document = {
        "max_abs_error": 1.2345e-9,
        "total_ps": 123456789,
        "name": "x_ns",
        "ok_ns": True,
        "ns_per_mm": 0.0137123,
    }
    assert round_figures(document) == document


@pytest.mark.parametrize("name", ["configuration", "config", "attrs", "params"])
def test_what_was_given_is_shown_as_it_was(name: str) -> None:
    assert round_figures({name: {"setup_ns": 2.71828}}) == {name: {"setup_ns": 2.71828}}


def test_the_text() -> None:
    assert json_text({"é_ns": NOISE}, indent=1) == '{\n "é_ns": 103.536\n}'
    assert json.loads(json_text([1.5], indent=2)) == [1.5]
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"a": math.nan}, indent=1)
