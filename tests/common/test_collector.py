from __future__ import annotations

import gc

import pytest

from kernbench.common.collector import PATIENT, patient_collector


def test_the_threshold_is_put_back_whatever_happens() -> None:
    before = gc.get_threshold()

    def fail_inside() -> None:
        with patient_collector():
            assert gc.get_threshold() == PATIENT
            raise ValueError

    with pytest.raises(ValueError):
        fail_inside()
    assert gc.get_threshold() == before


def test_two_threads_that_overlap_leave_it_as_it_was() -> None:
    before = gc.get_threshold()
    one, other = patient_collector(), patient_collector()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    assert gc.get_threshold() == before
