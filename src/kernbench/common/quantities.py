"""Quantities in configuration files. Their bounds keep simulated time far from the end of the clock."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from kernbench.common.units import parse_size

LEAST_RATE = 1e-6


def _not_vanishing(value: float) -> float:
    if value < LEAST_RATE:
        raise ValueError(f"found {value!r}, must be at least {LEAST_RATE:g}")
    return value


Bandwidth = Annotated[float, Field(gt=0, le=1e9), AfterValidator(_not_vanishing)]
Rate = Annotated[float, Field(gt=0, le=1e12), AfterValidator(_not_vanishing)]
Share = Annotated[float, Field(gt=0, le=1), AfterValidator(_not_vanishing)]
Length = Annotated[float, Field(ge=0, le=1e9)]
Duration = Annotated[float, Field(ge=0, le=1e12)]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1, le=1 << 50)]
