"""The memory time M of an access against a brute force that looks at every byte's channel."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.components.hbm_channels import HbmChannels
from kernbench.messages.fabric import Access
from kernbench.topology.builder import resolve_topology


def channels(*overrides: str) -> HbmChannels:
    return HbmChannels(resolve_topology("default", [f"cube.hbm.{o}" for o in overrides]).spec)


XOR = channels()
MOD = channels("channel_hash=mod")
FEW = channels("num_pcs=4", "burst_bytes=128", "access_bytes=32")
ONE = channels("num_pcs=1")


def brute_force_channel(burst: int, n: int, xor: bool) -> int:
    if not xor:
        return burst % n
    digit = 0
    while burst:
        digit ^= burst % n
        burst //= n
    return digit


def brute_force(access: Access, n: int, burst_bytes: int, piece: int, xor: bool) -> int:
    touched = {
        (access.pa + row * access.stride + byte) // piece
        for row in range(access.rows)
        for byte in range(access.row_bytes)
    }
    loads = [0] * n
    for index in touched:
        loads[brute_force_channel(index * piece // burst_bytes, n, xor)] += piece
    return max(loads)


accesses = st.builds(
    Access,
    pa=st.integers(0, 1 << 20),
    row_bytes=st.integers(1, 700),
    rows=st.integers(1, 12),
    stride=st.one_of(st.sampled_from([64, 256, 1024, 2048, 4096, 16384]), st.integers(0, 5000)),
)


@given(accesses)
@settings(max_examples=150)
def test_busiest_channel_is_what_brute_force_finds(access: Access) -> None:
    assert XOR.busiest_bytes(access) == brute_force(access, 8, 256, 64, xor=True)
    assert MOD.busiest_bytes(access) == brute_force(access, 8, 256, 64, xor=False)
    assert FEW.busiest_bytes(access) == brute_force(access, 4, 128, 32, xor=True)
    assert ONE.busiest_bytes(access) == brute_force(access, 1, 256, 64, xor=False)


@given(st.integers(0, 1 << 30), st.integers(1, 40_000))
@settings(max_examples=100)
def test_a_long_run_is_what_brute_force_finds(pa: int, nbytes: int) -> None:
    access = Access(pa, nbytes)
    assert XOR.busiest_bytes(access) == brute_force(access, 8, 256, 64, xor=True)


def test_a_local_4_kib_takes_20_ns() -> None:
    assert XOR.time_ps(Access(0, 4096)) == 20_000


def test_a_contiguous_stream_reaches_what_the_slice_sustains() -> None:
    assert XOR.time_ps(Access(0, 1 << 20)) == pytest.approx((1 << 20) / 204.8 * 1000, abs=1)


def test_one_channel_gives_an_eighth() -> None:
    """Rows of one burst, a group apart: ``mod`` puts all on one channel, ``xor`` spreads them."""
    column = Access(0, 256, rows=64, stride=8 * 256)
    assert MOD.time_ps(column) == 8 * XOR.time_ps(column)
    assert XOR.time_ps(column) == pytest.approx(64 * 256 / 204.8 * 1000, abs=1)


def test_a_partial_piece_costs_a_whole_one() -> None:
    assert XOR.busiest_bytes(Access(0, 1)) == 64
    assert XOR.busiest_bytes(Access(60, 8)) == 128
