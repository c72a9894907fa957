"""A small machine whose sizes are easy to fill."""

from __future__ import annotations

import pytest

from kernbench.policy.address.allocator import AddressConfig


@pytest.fixture
def cfg() -> AddressConfig:
    return AddressConfig(
        sip_count=2,
        cubes_per_sip=4,
        pes_per_cube=8,
        hbm_bytes_per_cube=8 << 20,
        hbm_slices_per_cube=8,
        tcm_bytes_per_pe=64 << 10,
        tcm_scheduler_reserved_bytes=16 << 10,
        sram_bytes_per_cube=256 << 10,
    )
