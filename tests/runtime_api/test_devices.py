from __future__ import annotations

import pytest

from kernbench.common.errors import InputError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.types import DeviceSelector, resolve_device


def test_a_selector_means_all_sips_or_one(machine):
    assert resolve_device(DeviceSelector("all"), machine.spec) == (0, 1)
    assert resolve_device(DeviceSelector("sip:1"), machine.spec) == (1,)
    assert resolve_device("sip:0", machine.spec) == (0,)
    assert str(DeviceSelector("sip:1")) == "sip:1"


@pytest.mark.parametrize("text", ["", "sip", "sip:", "sip:-1", "gpu:0", "sip:0,1", "ALL"])
def test_another_text_is_refused_with_what_is_allowed(text):
    with pytest.raises(InputError, match=r"'all' or, for one SIP, 'sip:0'"):
        DeviceSelector(text)


def test_a_sip_that_is_not_there_is_refused_with_those_that_are(machine):
    with pytest.raises(InputError, match="there are: all, sip:0, sip:1"):
        resolve_device("sip:2", machine.spec)


def test_tensors_go_to_the_first_selected_sip_until_another_is_set(torch):
    assert torch.ahbm.current_device() is None
    assert torch.zeros(2).sip == 0
    torch.ahbm.set_device(1)
    assert torch.accelerator.current_device_index() == 1
    assert torch.zeros(2).sip == 1
    torch.accelerator.set_device_index(0)
    assert torch.ahbm.current_device() == 0
    assert {shard.sip for shard in torch.zeros(2).shards} == {0}


def test_only_selected_sips_can_be_set(engine):
    with RuntimeContext(engine, "sip:1") as torch:
        assert torch.ones(3).sip == 1
        assert torch.ahbm.device_count() == torch.accelerator.device_count() == 1
        with pytest.raises(InputError, match="this run has the SIPs 1"):
            torch.ahbm.set_device(0)
