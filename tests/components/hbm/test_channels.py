"""What each channel moves for an access, against a brute force that looks at every byte's channel."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernbench.components.hbm.ideal import Channels
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import HbmSpec
from kernbench.topology.rules import channels_and_pieces


def channels(**changes: object) -> Channels:
    spec = {"slices": 8, "bytes_per_slice": "6GiB", "num_pcs": 8, "quantum_bytes": 2048, **changes}
    hbm = HbmSpec.model_validate(spec)
    assert not list(channels_and_pieces(hbm))
    return Channels(hbm)


XOR = channels()
MOD = channels(channel_hash="mod")
FEW = channels(num_pcs=4, burst_bytes=128, access_bytes=32)
ONE = channels(num_pcs=1)


def brute_force_channel(burst: int, n: int, xor: bool) -> int:
    if not xor:
        return burst % n
    digit = 0
    while burst:
        digit ^= burst % n
        burst //= n
    return digit


def brute_force(access: Access, end: int, n: int, burst_bytes: int, piece: int, xor: bool) -> list[int]:
    """Of the first ``end`` bytes."""
    touched = {
        (access.pa + at // access.row_bytes * access.stride + at % access.row_bytes) // piece for at in range(end)
    }
    loads = [0] * n
    for index in touched:
        loads[brute_force_channel(index * piece // burst_bytes, n, xor)] += piece
    return loads


accesses = st.builds(
    Access,
    pa=st.integers(0, 1 << 20),
    row_bytes=st.integers(1, 700),
    rows=st.integers(1, 12),
    stride=st.one_of(st.sampled_from([64, 256, 1024, 2048, 4096, 16384]), st.integers(0, 5000)),
)


@given(accesses, st.floats(0, 1))
def test_loads_are_what_brute_force_finds(access: Access, part: float) -> None:
    for end in (access.nbytes, round(part * access.nbytes)):
        assert XOR.loads(access, end) == brute_force(access, end, 8, 256, 64, xor=True)
        assert MOD.loads(access, end) == brute_force(access, end, 8, 256, 64, xor=False)
        assert FEW.loads(access, end) == brute_force(access, end, 4, 128, 32, xor=True)
        assert ONE.loads(access, end) == brute_force(access, end, 1, 256, 64, xor=False)


@given(st.integers(0, 1 << 30), st.integers(1, 40_000))
def test_a_long_run_is_what_brute_force_finds(pa: int, nbytes: int) -> None:
    assert XOR.loads(Access(pa, nbytes), nbytes) == brute_force(Access(pa, nbytes), nbytes, 8, 256, 64, xor=True)


def test_rows_that_go_down_are_as_those_that_go_up() -> None:
    assert XOR.loads(Access(8192, 100, 5, -1024), 500) == XOR.loads(Access(4096, 100, 5, 1024), 500)


def test_a_partial_piece_is_a_whole_one() -> None:
    assert max(XOR.loads(Access(0, 1), 1)) == 64
    assert max(XOR.loads(Access(60, 8), 8)) == 128
