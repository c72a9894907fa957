"""A memory without banks, for tests that compute times by hand: an access alone takes its closed form."""

from __future__ import annotations

ACCESS_NS = 30.0
EFFICIENCY = 0.8
SLICE_GBS = 204.8
IDEAL = (
    "cube.hbm.timing=ideal",
    "cube.hbm.burst_bytes=256",
    "cube.hbm.channel_hash=xor",
    "cube.hbm.access_bytes=64",
    f"cube.components.hbm_ctrl.attrs.access_ns={ACCESS_NS}",
    f"cube.components.hbm_ctrl.attrs.efficiency={EFFICIENCY}",
)
