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
