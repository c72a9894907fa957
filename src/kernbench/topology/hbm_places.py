"""The mapping of a slice's bursts to places: from burst numbers to pc, stack, group, bank, column and row."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from kernbench.topology.hbm_spec import AddressMapping, HbmSpec, HbmTiming, MappingField

BurstArray = NDArray[np.int64]


class BurstPlaces:
    """The places of bursts under a mapping, in a slice of ``num_pcs`` pseudo-channels with banks of a timing."""

    __slots__ = ("_fields", "sizes")

    def __init__(self, timing: HbmTiming, num_pcs: int, mapping: AddressMapping) -> None:
        self.sizes = {"pc": num_pcs, "stack": timing.stacks, "group": timing.groups, "bank": timing.banks}
        """Number of values of each field except column and row"""
        self._fields = [(entry, self._size(entry, timing.columns, mapping)) for entry in mapping[:-1]]

    def _size(self, entry: MappingField, columns: int, mapping: AddressMapping) -> int:
        if entry.field != "column":
            return self.sizes[entry.field]
        sizes = [field.values for field in mapping if field.field == "column" and field.values]
        return entry.values or columns // prod(sizes)

    @property
    def lowest_size(self) -> int:
        """The number of values of the lowest field."""
        return self._fields[0][1]

    @property
    def below_banks(self) -> int:
        """The number of values of the fields below stack, group and bank."""
        lowest = next(at for at, (entry, _) in enumerate(self._fields) if entry.field in ("stack", "group", "bank"))
        return prod([size for _, size in self._fields[:lowest]])

    def of(self, bursts: BurstArray) -> Mapping[str, BurstArray]:
        """Return pc, stack, group, bank, column and row of bursts, whose numbers count from the start of the slice."""
        coordinates: dict[str, BurstArray] = {"column": np.zeros_like(bursts)}
        above: dict[str, BurstArray] = {}
        remaining, columns = bursts, 1
        for entry, size in self._fields:
            remaining, value = np.divmod(remaining, size)
            if entry.field == "column":
                coordinates["column"] = coordinates["column"] + value * columns
                columns *= size
            else:
                coordinates[entry.field], above[entry.field] = value, remaining
        coordinates["row"] = remaining
        return {**coordinates, **self._fold_fields(coordinates, above)}

    def _fold_fields(
        self, coordinates: Mapping[str, BurstArray], above: Mapping[str, BurstArray]
    ) -> dict[str, BurstArray]:
        """Return the values of all fields that have a fold, with the folded bits XORed in.

        Each fold of a field uses the next bits of that field. The bits of a row are distributed round-robin over the
        folds that name the row, until no bits remain.
        """
        folded: dict[str, BurstArray] = {}
        unused = dict(coordinates)
        for entry, size in self._fields:
            if entry.fold == "above":
                folded[entry.field] = coordinates[entry.field] ^ _xor_of_digits(above[entry.field], size)
            elif entry.fold is not None:
                unused[entry.fold], bits = np.divmod(unused[entry.fold], size)
                folded[entry.field] = coordinates[entry.field] ^ bits
        row_folds = [(entry.field, size) for entry, size in self._fields if entry.fold == "row" and size > 1]
        while row_folds and unused["row"].any():
            for name, size in row_folds:
                unused["row"], bits = np.divmod(unused["row"], size)
                folded[name] = folded[name] ^ bits
        return folded


def bank_step_bytes(hbm: HbmSpec) -> int:
    """Return the bytes from a place of a slice to the same place in the next bank; 0 without banks."""
    if hbm.banks is None:
        return 0
    places = BurstPlaces(hbm.banks, hbm.num_pcs, hbm.fields(hbm.banks))
    return places.below_banks * hbm.banks.burst_bytes


def _xor_of_digits(numbers: BurstArray, base: int) -> BurstArray:
    total = np.zeros_like(numbers)
    while base > 1 and numbers.any():
        numbers, digit = np.divmod(numbers, base)
        total ^= digit
    return total
