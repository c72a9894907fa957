"""Parts that a machine has beside the builtin ones: the sections ``cube.extra`` and ``pe.extra``.

Each stands in every cube, or in every PE, under its own name. It is of a kind of its own, has links to neighbours that
it names, and with ``bytes`` it is a memory that addresses reach.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from kernbench.common.complaints import Complaint, Rejected, one_of
from kernbench.common.config import ConfigModel, Size
from kernbench.common.values import value
from kernbench.di.part import KINDS, PartAttrs
from kernbench.topology.fields import ComponentSpec, LinkSpec, implementation_of, registry_of

WINDOW_BYTES = 16 << 20
"""Addresses of an extra memory begin at a multiple of this: no two memories share a window of so many."""


def _part_name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", text):
        raise ValueError(f"{text!r} is no name of a part: small letters, digits and _, a letter first")
    return text


class ExtraLink(LinkSpec):
    """A pair of links to a neighbour, one each way, alike."""

    to: str


class ExtraPart(ComponentSpec[PartAttrs]):
    """``{ impl: my_parts.Scratch, bytes: 1MiB, attrs: {...}, links: [{ to: sram, bw_gbs: 64.0 }] }``.

    ``kind`` is the part's name unless given; with ``bytes`` it is a memory.
    """

    kind: str = ""
    bytes: Size | None = None
    links: tuple[ExtraLink, ...] = Field(min_length=1)

    @field_validator("impl")
    @classmethod
    def _implements_kind(cls, impl: str, info: ValidationInfo) -> str:
        """There is such a class; ``_of_kinds`` looks at its kinds once the part's own is known."""
        implementation_of(registry_of(info), impl)
        return impl


def _of_kinds(parts: dict[str, ExtraPart], info: ValidationInfo) -> dict[str, ExtraPart]:
    """The parts with their kinds. What a class was registered for binds it, not what it is derived from."""
    registry, complaints = registry_of(info), []
    for name, part in parts.items():
        kind = part.kind or name
        registered = registry.kinds_of(implementation_of(registry, part.impl))
        kinds = [each for each in registered if each not in KINDS]
        if kind in KINDS:
            message = f"{kind!r} is a builtin kind; an extra part has another name, or a kind of its own"
            complaints.append(Complaint((name, "kind"), message))
        elif part.impl in registry.known_impls() and not kinds:
            message = (
                f"{part.impl!r} implements {one_of(registered)}, a builtin kind; derive a class of your own from it"
            )
            complaints.append(Complaint((name, "impl"), message))
        elif kinds and kind not in kinds:
            message = f"{part.impl!r} implements {one_of(kinds)}, not {kind}; write kind: {kinds[0]}"
            complaints.append(Complaint((name, "impl"), message))
    if complaints:
        raise Rejected(complaints)
    return {name: part.model_copy(update={"kind": part.kind or name}) for name, part in parts.items()}


Extras = Annotated[dict[Annotated[str, AfterValidator(_part_name)], ExtraPart], AfterValidator(_of_kinds)]


class WithExtras(ConfigModel):
    """A section with ``extra``; machines without any look as if there were no such key."""

    extra: Extras = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _without_none(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = plain(self)
        return found if self.extra else {name: value for name, value in found.items() if name != "extra"}


@value
class AddressWindow:
    """The addresses of an extra memory: ``nbytes`` from ``offset`` on, in the part of the addresses that has them."""

    name: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first offset behind it."""
        return self.offset + self.nbytes


def windows(extra: Mapping[str, ExtraPart], behind: int) -> Iterator[AddressWindow]:
    """The windows of the memories among ``extra``, in their order, the first one behind offset ``behind``."""
    for name, part in extra.items():
        if part.bytes is not None:
            window = AddressWindow(name, -(-behind // WINDOW_BYTES) * WINDOW_BYTES, part.bytes)
            behind = window.end
            yield window


def unreachable(extra: Mapping[str, ExtraPart]) -> list[str]:
    """The parts that have links to each other only."""
    left = dict(extra)
    while True:
        joined = [name for name, part in left.items() if any(link.to not in left for link in part.links)]
        if not joined:
            return list(left)
        for name in joined:
            del left[name]
