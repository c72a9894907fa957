"""The order of the replay as integers that sort as the hardware orders reads and commits.

One integer holds the time in ps, 1 for a read or 0 for a commit, and the sequence number: at one instant commits come
before reads, further ties go by sequence number. A record that commits at the instant it reads has a read only, and
commits with it. Records are replayed in that order; the integers say up to where tiles of composites have to be.
"""

from __future__ import annotations

from kernbench.core.op_log import OpRecord

_SEQ_BITS = 40
READ = 1 << _SEQ_BITS
PS_SHIFT = _SEQ_BITS + 1
NEVER = 1 << 128
"""Behind every event."""


def read_event(record: OpRecord) -> int:
    """When ``record`` reads its operands."""
    return record.t_read_ps << PS_SHIFT | READ | record.seq


def commit_event(record: OpRecord) -> int:
    """When the result of ``record`` is in memory; its commit has to be known."""
    return record.t_commit_ps << PS_SHIFT | record.seq


def is_instant(record: OpRecord) -> bool:
    """Whether it commits at the instant it reads."""
    return record.t_commit_ps == record.t_read_ps


def is_tiled(record: OpRecord) -> bool:
    """Whether it is a composite, which reads and commits tile by tile."""
    return record.params.tile_sizes is not None and record.t_commit_ps != record.t_read_ps
