"""The types of single values in ``topology.yaml``."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from kernbench.common.config import ConfigModel
from kernbench.common.units import parse_size

Bandwidth = Annotated[float, Field(gt=0)]
Length = Annotated[float, Field(ge=0)]
Duration = Annotated[float, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1)]


class SizeMm(ConfigModel):
    """Width and height of a die in mm."""

    w: float = Field(gt=0)
    h: float = Field(gt=0)
