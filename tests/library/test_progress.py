"""Progress of a run: the text of its states."""

from __future__ import annotations

from typing import Any

import pytest

import kernbench as kb
from kernbench.library.progress import RunProgress
from kernbench.runtime_api.operators import MemberCalls, OperatorTallies

STATE = dict[str, Any](
    bench="gpt",
    elapsed_s=2.0,
    sim_ns=15000.0,
    events=4000,
    requests=12,
    requests_done=11,
    passed=0,
    launches={"mlp": 1},
    operators=0,
    members=None,
    memory_bytes=1 << 30,
    limit_s=None,
)
AFTER = "11 of 12 requests done, mlp, 2,000 events/s, 1 GiB"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"events": 0}, "simulating gpt"),
        ({"events": 0, "limit_s": 600.0}, "simulating gpt, for at most 600 s of real time (--max-wall-s)"),
        ({}, f"gpt: 15.00 µs simulated, {AFTER}"),
        ({"operators": 1234}, f"gpt: 15.00 µs simulated, 1,234 operators called, {AFTER}"),
        (
            {"operators": 40, "members": MemberCalls("layers", 32, calls=12, last_s=2.0)},
            f"gpt: 15.00 µs simulated, layers: 12 of 32 called, about 40 s to the last, {AFTER}",
        ),
        ({"passed": 3}, f"gpt: 15.00 µs simulated, {AFTER.replace(', mlp', ' (3 passed), mlp')}"),
    ],
    ids=str,
)
def test_the_text_of_a_state(changed: dict[str, Any], text: str) -> None:
    assert str(RunProgress(**{**STATE, **changed})) == text


def test_calls_of_members_count_on_in_the_next_pass_and_anew_for_another_list() -> None:
    tallies = OperatorTallies(lambda: 0.0)
    for _ in range(3):
        tallies.end_member("layers", 3, 1.0)
    assert str(tallies.members) == "layers: 3 of 3 called"
    tallies.end_member("layers", 3, 1.5)
    assert str(tallies.members) == "layers: 1 of 3 called in pass 2, about 3 s to the last"
    tallies.end_member("decoder.layers", 2, 0.0)
    assert str(tallies.members) == "decoder.layers: 1 of 2 called"


def test_a_run_tells_its_limit_and_its_work() -> None:
    states: list[RunProgress] = []
    kb.run("gemm-single-pe", "one-cube", max_wall_s=500, data=False, on_progress=states.append).raise_for_status()
    assert (states[0].limit_s, states[0].events) == (500.0, 0)
    assert states[-1].requests_done == states[-1].requests > 0
    assert states[-1].members is None
