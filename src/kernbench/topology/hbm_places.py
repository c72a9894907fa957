"""The places of the bursts of a slice: from their numbers to the fields of their addresses, with all folds."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from kernbench.topology.hbm_spec import AddressMapping, HbmTiming, MappingField

BurstArray = NDArray[np.int64]


class Places:
    """The fields of bursts under a mapping, of a slice of ``num_pcs`` pseudo-channels with banks of such a timing."""

    __slots__ = ("_fields", "sizes")

    def __init__(self, timing: HbmTiming, num_pcs: int, mapping: AddressMapping) -> None:
        self.sizes = {"pc": num_pcs, "stack": timing.stacks, "group": timing.groups, "bank": timing.banks}
        """Values of each field but column and row"""
        self._fields = [(entry, self._size(entry, timing.columns, mapping)) for entry in mapping[:-1]]

    def _size(self, entry: MappingField, columns: int, mapping: AddressMapping) -> int:
        if entry.field != "column":
            return self.sizes[entry.field]
        given = [each.values for each in mapping if each.field == "column" and each.values]
        return entry.values or columns // prod(given)

    @property
    def lowest_size(self) -> int:
        """Values of the lowest field."""
        return self._fields[0][1]

    def of(self, bursts: BurstArray) -> Mapping[str, BurstArray]:
        """Return the fields of bursts, by their numbers in the slice: pc, stack, group, bank, column and row."""
        found: dict[str, BurstArray] = {"column": np.zeros_like(bursts)}
        above: dict[str, BurstArray] = {}
        rest, columns = bursts, 1
        for entry, size in self._fields:
            rest, value = np.divmod(rest, size)
            if entry.field == "column":
                found["column"] = found["column"] + value * columns
                columns *= size
            else:
                found[entry.field], above[entry.field] = value, rest
        found["row"] = rest
        return {**found, **self._fold_fields(found, above)}

    def _fold_fields(self, found: Mapping[str, BurstArray], above: Mapping[str, BurstArray]) -> dict[str, BurstArray]:
        """Return the fields that something is folded into.

        A field gives each that it is folded into its next bits; the bits of a row go round until none are left.
        """
        folded: dict[str, BurstArray] = {}
        left = dict(found)
        for entry, size in self._fields:
            if entry.fold == "above":
                folded[entry.field] = found[entry.field] ^ _xor_of_digits(above[entry.field], size)
            elif entry.fold is not None:
                left[entry.fold], bits = np.divmod(left[entry.fold], size)
                folded[entry.field] = found[entry.field] ^ bits
        taking = [(entry.field, size) for entry, size in self._fields if entry.fold == "row" and size > 1]
        while taking and left["row"].any():
            for name, size in taking:
                left["row"], bits = np.divmod(left["row"], size)
                folded[name] = folded[name] ^ bits
        return folded


def _xor_of_digits(numbers: BurstArray, base: int) -> BurstArray:
    total = np.zeros_like(numbers)
    while base > 1 and numbers.any():
        numbers, digit = np.divmod(numbers, base)
        total ^= digit
    return total
