"""The HBM of a cube: its keys, the timing presets of banks, and the fields of an address."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from kernbench.common.config import ConfigModel, Duration, ExtendedModel, Share, Size
from kernbench.common.units import parse_size
from kernbench.common.values import value
from kernbench.di.part import PartAttrs
from kernbench.topology.fields import PositiveCount

Few = Annotated[int, Field(ge=1, le=32)]
RowSize = Annotated[int, BeforeValidator(parse_size), Field(ge=1, le=1 << 16)]


class HbmTiming(ExtendedModel):
    """The timings of a pseudo-channel (PC), with their JEDEC names; the defaults are those of HBM3."""

    later_keys = frozenset({"ccd_l_wr_ns", "column_bus_ns"})

    stacks: Few = 2
    """Ranks (stack IDs) of a pseudo-channel."""
    groups: Few = 4
    """Bank groups of a stack."""
    banks: Few = 4
    """Banks of a bank group."""
    row_bytes: RowSize = 1024
    """Bytes of a row of a bank."""
    burst_bytes: RowSize = 32
    """Bytes of a burst."""
    pcs_per_channel: Few = 2
    """PCs that share a row command bus and queues."""
    rc_ns: Duration = 45.0
    """tRC: from ACT to the next ACT of the same bank."""
    rp_ns: Duration = 16.3
    """tRP: from PRE to ACT."""
    rcd_ns: Duration = 19.4
    """tRCD: from ACT to a read."""
    rcd_write_ns: Duration = 9.4
    """tRCD of a write: from ACT to a write."""
    cl_ns: Duration = 12.5
    """CL: from a read to its first byte."""
    act_ns: Duration = 3.75
    """Time between ACTs of a PC: the larger of tFAW / 4 and tRRD."""
    row_bus_ns: Duration = 1.25
    """Occupancy of a channel's row command bus by PRE or ACT."""
    column_bus_ns: Duration | None = None
    """Occupancy of the row command bus by a read or a write, if all commands share the bus; null: reads and writes
    have their own bus."""
    ccd_s_ns: float = Field(default=1.25, gt=0, le=1e6)
    """tCCD_S: from a burst to the next; also the time of a burst on the data bus."""
    ccd_l_ns: Duration = 2.5
    """tCCD_L: from a burst to the next burst of the same bank group."""
    ccd_l_wr_ns: Duration | None = None
    """tCCD_L_WR: from a write burst to the next of the same bank group; null: the value of ``ccd_l_ns``."""
    ccd_r_ns: Duration = 1.9
    """tCCD_R: between bursts of different stacks, if both stacks read only one group."""
    rtp_ns: Duration = 5.6
    """tRTP: from a read to PRE."""
    cwl_ns: Duration = 6.25
    """CWL: from a write to its first byte."""
    wr_ns: Duration = 20.6
    """tWR: from the last byte of a write to PRE."""
    rtw_ns: Duration = 12.5
    """Time from a read to a write."""
    wtr_ns: Duration = 13.8
    """Time from a write to a read: CWL, burst and tWTR_L."""
    rfc_ns: Duration = 350.0
    """tRFC: duration of a refresh."""
    refi_ns: float = Field(default=3900.0, gt=0, le=1e12)
    """tREFI: from a refresh to the next."""
    drain: float = Field(default=0.7, ge=0, le=1)
    """Time that each refresh costs beyond tRFC, tRP and tRCD, as a fraction of tRC; the default is fitted to hbm3."""
    high: Share = 0.8
    """High watermark: the filled fraction of the write queue at which the controller begins to drain writes."""
    low: float = Field(default=0.2, ge=0, le=1)
    """Low watermark: the filled fraction of the write queue at which the controller stops draining."""

    @property
    def write_ccd_l_ns(self) -> float:
        """``ccd_l_wr_ns``, or ``ccd_l_ns`` if it is null."""
        return self.ccd_l_ns if self.ccd_l_wr_ns is None else self.ccd_l_wr_ns

    @property
    def pc_gbs(self) -> float:
        """The peak bandwidth of a PC."""
        return self.burst_bytes / self.ccd_s_ns

    @property
    def banks_per_pc(self) -> int:
        """Banks of a PC, in all its stacks and groups."""
        return self.stacks * self.groups * self.banks

    @property
    def columns(self) -> int:
        """Bursts of a row."""
        return self.row_bytes // self.burst_bytes

    @property
    def refresh_share(self) -> float:
        """The fraction of time that is lost to refresh."""
        return (self.rfc_ns + self.rp_ns + self.rcd_ns + self.drain * self.rc_ns) / self.refi_ns

    @property
    def without_refresh(self) -> HbmTiming:
        """The same banks without refresh."""
        return self.model_copy(update={"refi_ns": inf})


HBM3 = HbmTiming()
HBM2 = HbmTiming(
    stacks=1,
    rc_ns=48.0,
    rp_ns=14.0,
    rcd_ns=14.0,
    rcd_write_ns=12.0,
    cl_ns=14.0,
    act_ns=4.0,
    row_bus_ns=3.0,
    ccd_s_ns=2.0,
    ccd_l_ns=4.0,
    ccd_r_ns=2.0,
    rtp_ns=5.0,
    cwl_ns=5.0,
    wr_ns=16.0,
    rtw_ns=13.0,
    wtr_ns=15.0,
)
HBM4 = HbmTiming(
    groups=2,
    banks=8,
    rp_ns=16.5,
    rcd_ns=19.5,
    rcd_write_ns=9.5,
    cl_ns=10.0,
    row_bus_ns=1.0,
    ccd_s_ns=1.0,
    ccd_l_ns=2.0,
    ccd_r_ns=1.0,
    rtp_ns=6.0,
    cwl_ns=5.0,
    wr_ns=21.0,
    wtr_ns=12.5,
    rfc_ns=450.0,
)
LPDDR5 = HbmTiming(
    stacks=1,
    row_bytes=2048,
    pcs_per_channel=1,
    rc_ns=61.25,
    rp_ns=18.75,
    rcd_ns=18.75,
    rcd_write_ns=18.75,
    cl_ns=21.25,
    act_ns=5.0,
    row_bus_ns=3.75,
    column_bus_ns=1.25,
    ccd_s_ns=2.5,
    ccd_l_ns=5.0,
    ccd_r_ns=2.5,
    rtp_ns=10.0,
    cwl_ns=11.25,
    wr_ns=35.0,
    rtw_ns=15.0,
    wtr_ns=28.75,
    rfc_ns=280.0,
    refi_ns=3906.0,
)
DDR5 = HbmTiming(
    stacks=1,
    groups=8,
    row_bytes=4096,
    burst_bytes=64,
    pcs_per_channel=1,
    rc_ns=47.1,
    rp_ns=15.0,
    rcd_ns=15.0,
    rcd_write_ns=15.0,
    cl_ns=15.0,
    act_ns=5.0,
    ccd_s_ns=64 / 19.2,
    ccd_l_ns=5.0,
    ccd_l_wr_ns=20.0,
    ccd_r_ns=64 / 19.2,
    rtp_ns=7.5,
    cwl_ns=14.2,
    wr_ns=30.0,
    rtw_ns=5.8,
    wtr_ns=27.5,
    rfc_ns=295.0,
)


@value
class TimingPreset:
    """A named timing, with its data rate in Gb/s per pin and the source of its values.

    ``assumed``: only the data rate is public; the other values come from another timing.
    """

    timing: HbmTiming
    pin_gbps: float
    source: str
    assumed: bool = False

    @property
    def bus_bits(self) -> int:
        """Data pins of a PC."""
        return round(8 * self.timing.pc_gbs / self.pin_gbps)


def _at_rate(timing: HbmTiming, pin_gbps: float, bus_bits: int) -> HbmTiming:
    """Return the timing with bursts at another data rate; the other times in ns do not change.

    If all commands share a bus, their times on the bus change by the same factor as the time of a burst.
    """
    burst_ns = 8 * timing.burst_bytes / (bus_bits * pin_gbps)
    update = {"ccd_s_ns": burst_ns}
    if timing.column_bus_ns is not None:
        rate = timing.ccd_s_ns / burst_ns
        update |= {"row_bus_ns": timing.row_bus_ns / rate, "column_bus_ns": timing.column_bus_ns / rate}
    return timing.model_copy(update=update)


def mark_assumed(name: str, *, assumed: bool) -> str:
    """Return the printed name of a timing."""
    return f"{name} (assumed)" if assumed else name


TimingName = Literal["hbm2", "hbm3", "hbm3e", "hbm4", "lpddr5", "lpddr5x", "ddr5"]
PRESETS: Mapping[str, TimingPreset] = MappingProxyType(
    {
        "hbm2": TimingPreset(HBM2, 2.0, "public tables of HBM2 (JESD235): 2.0 Gb/s, 8 Gb a channel"),
        "hbm3": TimingPreset(HBM3, 6.4, "public tables of HBM3 (JESD238): 6.4 Gb/s, 16 Gb dies, 8 high"),
        "hbm3e": TimingPreset(
            _at_rate(HBM3, 9.6, 32), 9.6, "the public data rate of HBM3E, 9.6 Gb/s, with the ns of hbm3", assumed=True
        ),
        "hbm4": TimingPreset(HBM4, 8.0, "public tables of HBM4 (JESD270-4): 8.0 Gb/s, 32 Gb dies, 8 high"),
        "lpddr5": TimingPreset(LPDDR5, 6.4, "public tables of LPDDR5 (JESD209-5): 6400, x16, 16 Gb, bank groups"),
        "lpddr5x": TimingPreset(
            _at_rate(LPDDR5, 8.533, 16),
            8.533,
            "the public data rate of LPDDR5X, 8.533 Gb/s, with the ns of lpddr5 and commands at its own clock",
            assumed=True,
        ),
        "ddr5": TimingPreset(DDR5, 4.8, "public tables of DDR5 (JESD79-5): 4800, x8, 16 Gb, a subchannel of 32 bits"),
    }
)
"""Timing presets by name"""

FieldName = Literal["column", "pc", "stack", "group", "bank", "row"]
Fold = Literal[FieldName, "above"]


class MappingField(ConfigModel):
    """A field of an address: a coordinate, its number of ``values`` in these bits, and the bits XORed into it.

    With ``fold: above``, all address bits above the field are XORed into it. With a field's name as ``fold``, the bits
    are the next bits of that field that no earlier field has used. The bits of a row are distributed round-robin over
    the fields that fold them in, until no bits remain.
    """

    field: FieldName
    """Coordinate of a burst that these bits of the address select."""
    values: PositiveCount | None = None
    """Number of values of the coordinate in these bits; null: all remaining values."""
    fold: Fold | None = None
    """Bits folded in by XOR: those of another coordinate, or ``above`` for all higher address bits; null: none."""


AddressMapping = tuple[MappingField, ...]


def _fields(*entries: tuple[FieldName, int | None, Fold | None]) -> AddressMapping:
    return tuple(MappingField(field=field, values=values, fold=fold) for field, values, fold in entries)


MOP4CLXOR = _fields(
    ("column", 4, None),
    ("pc", None, "column"),
    ("stack", None, "column"),
    ("group", None, "column"),
    ("bank", None, "column"),
    ("column", None, None),
    ("row", None, None),
)
ROBARACOCH = _fields(
    ("column", None, None),
    ("pc", None, None),
    ("stack", None, None),
    ("group", None, None),
    ("bank", None, None),
    ("row", None, None),
)
MAPPINGS = {"MOP4CLXOR": MOP4CLXOR, "RoBaRaCoCh": ROBARACOCH}


def interleave(bursts: int, xor: bool, *, fold_row: bool = False) -> AddressMapping:
    """Return the mapping that puts ``bursts`` bursts on a PC, then continues on the next PC, group, stack and bank.

    With ``xor`` all higher address bits are XORed into the PC. With ``fold_row`` the row is XORed into group and bank.
    """
    row: Fold | None = "row" if fold_row else None
    return _fields(
        ("column", bursts, None),
        ("pc", None, "above" if xor else None),
        ("group", None, row),
        ("stack", None, None),
        ("bank", None, row),
        ("column", None, None),
        ("row", None, None),
    )


Refresh = Literal["all-bank", "spread", "none"]
"""Models of refresh: all banks of a slice stop at once, all work is slower by refresh's share of time, or none."""


class HbmSpec(ConfigModel):
    """The HBM of a cube: slices of pseudo-channels.

    Properties replace null keys by their defaults. A key that the timing or the mapping does not use is refused.
    """

    slices: PositiveCount
    """HBM slices of a cube, the same number at each corner."""
    bytes_per_slice: Size
    """Capacity of a slice."""
    num_pcs: int = Field(ge=1, le=1024)
    """Pseudo-channels of a slice."""
    timing: Literal["ideal", TimingName] | HbmTiming = "ideal"
    """Timings of the banks: a name of ``kernbench topology --timing``, or values by key; ``ideal`` has no banks."""
    mapping: Literal["interleave", "hash", "MOP4CLXOR", "RoBaRaCoCh"] | AddressMapping | None = None
    """Mapping of addresses to pseudo-channels and banks: a name, or a list of fields from the lowest bit up; null:
    interleave."""
    queue_entries: PositiveCount | None = None
    """Bursts that fit into the read queue of a channel, and as many into its write queue; null: 64."""
    refresh: Refresh | None = None
    """Model of refresh: all-bank (all banks stop at once), spread (all work is slower by the share of refresh) or none;
    null: all-bank."""
    burst_bytes: Size | None = None
    """Consecutive bytes on a pseudo-channel before addresses continue on the next one, under ``interleave`` and
    ``hash``; null: 256."""
    access_bytes: Size | None = None
    """Access granularity under ``ideal``: a smaller access costs as much as this many bytes; null: 64."""
    channel_hash: Literal["xor", "mod"] | None = None
    """Choice of the pseudo-channel under ``interleave`` and ``hash``: xor (XOR of all higher address bits) or mod
    (modulo); null: xor."""
    quantum_bytes: Size
    """Bytes served to a requester in one grant while other requesters wait."""

    @property
    def bytes(self) -> int:
        """Bytes of HBM in a cube."""
        return self.slices * self.bytes_per_slice

    @property
    def round_bytes(self) -> int:
        """Bytes of one round over all pseudo-channels of a slice: ``interleave_bytes`` on each."""
        return self.num_pcs * self.interleave_bytes

    @property
    def interleave_bytes(self) -> int:
        """``burst_bytes``: consecutive bytes on a pseudo-channel; 256 by default."""
        return self.burst_bytes or 256

    @property
    def piece_bytes(self) -> int:
        """``access_bytes``: the access granularity under ``ideal``; 64 by default."""
        return self.access_bytes or 64

    @property
    def folds_channels(self) -> bool:
        """True if ``channel_hash`` is xor."""
        return self.channel_hash != "mod"

    @property
    def banks(self) -> HbmTiming | None:
        """The timings of the banks; None under ``ideal``."""
        if self.timing == "ideal":
            return None
        timing = self.timing if isinstance(self.timing, HbmTiming) else PRESETS[self.timing].timing
        return timing.without_refresh if self.refresh == "none" else timing

    @property
    def is_assumed(self) -> bool:
        """True if only the data rate of the timing is public."""
        return isinstance(self.timing, str) and self.timing != "ideal" and PRESETS[self.timing].assumed

    @property
    def timing_name(self) -> str:
        """The name of the timing, or ``values`` if the file lists values."""
        return self.timing if isinstance(self.timing, str) else "values"

    @property
    def timing_text(self) -> str:
        """``timing_name``, marked if the timing is assumed."""
        return mark_assumed(self.timing_name, assumed=self.is_assumed)

    @property
    def refresh_mode(self) -> Refresh:
        """``refresh``: the model of refresh; ``all-bank`` by default."""
        return self.refresh or "all-bank"

    @property
    def interleaves(self) -> bool:
        """True if ``burst_bytes`` and ``channel_hash`` decide the mapping of addresses."""
        return self.banks is None or self.mapping in (None, "interleave", "hash")

    @property
    def queue(self) -> int:
        """``queue_entries``: bursts that fit into each queue of a channel (read, write); 64 by default."""
        return self.queue_entries or 64

    def fields(self, banks: HbmTiming) -> AddressMapping:
        """Return the fields of an address, from the lowest bits up."""
        if isinstance(self.mapping, tuple):
            return self.mapping
        named = MAPPINGS.get(self.mapping or "interleave")
        bursts, xor = self.interleave_bytes // banks.burst_bytes, self.folds_channels and self.num_pcs > 1
        return named or interleave(bursts, xor, fold_row=self.mapping == "hash")

    def access_ns(self, controller: HbmCtrlAttrs) -> float:
        """Return the latency of an access in ns, without the times to transfer its bytes and to open a row.

        The latency is ``access_ns`` of the controller, plus CL if there are banks. If ``access_ns`` is null, the sum is
        15 ns, or CL if CL is longer.
        """
        cl_ns = 0.0 if self.banks is None else self.banks.cl_ns
        return max(ACCESS_NS, cl_ns) if controller.access_ns is None else controller.access_ns + cl_ns


ACCESS_NS = 15.0


class HbmCtrlAttrs(PartAttrs):
    """The ``attrs`` of an HBM slice; ``HbmSpec.access_ns`` adds the ``cl_ns`` of its banks to ``access_ns``."""

    efficiency: Share | None = None
    """Usable fraction of a pseudo-channel's bandwidth under ``ideal``; null: 0.8."""
    access_ns: Duration | None = None
    """Latency of the controller for an access, to which CL of the timing is added; null: 15 including CL."""

    @property
    def usable(self) -> float:
        """``efficiency``, or 0.8."""
        return 0.8 if self.efficiency is None else self.efficiency
