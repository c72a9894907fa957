"""The types of single values in ``topology.yaml``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kernbench.common.config import Bandwidth, ConfigModel, Duration, Length, Rate, Size

__all__ = ["Bandwidth", "Count", "Duration", "Length", "Rate", "Size", "SizeMm"]

Count = Annotated[int, Field(ge=1, le=1_000_000)]


class SizeMm(ConfigModel):
    """Width and height of a die in mm."""

    w: float = Field(gt=0, le=1e6)
    h: float = Field(gt=0, le=1e6)
