"""Compass directions: x grows to the east, y to the south; row 0 is in the north."""

from __future__ import annotations

from typing import Literal

Side = Literal["E", "W", "N", "S"]
Corner = Literal["NW", "NE", "SW", "SE"]

# Also the order in which ties between equally short ways are broken.
SIDES: tuple[Side, ...] = ("E", "W", "N", "S")
# Enough to meet every neighbouring pair of a grid once.
FORWARD: tuple[Side, ...] = ("E", "S")
OPPOSITE: dict[Side, Side] = {"E": "W", "W": "E", "N": "S", "S": "N"}
STEP: dict[Side, tuple[int, int]] = {"E": (1, 0), "W": (-1, 0), "N": (0, -1), "S": (0, 1)}
