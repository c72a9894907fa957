"""The types of entries in ``topology.yaml``: values, classes of links, builtin parts, and extra parts.

The class that implements a component is looked up while the file is validated, so that its own ``Attrs`` model checks
``attrs`` and a slip is reported with its line like any other. The registry comes in as the validation context.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from kernbench.common.complaints import explain, one_of
from kernbench.common.config import (
    Bandwidth,
    Complaint,
    ConfigModel,
    Duration,
    Length,
    Rejected,
    Size,
    read_model,
)
from kernbench.common.errors import InputError, close_to
from kernbench.common.values import value
from kernbench.di.part import KINDS, InnerAttrs, Part, PartAttrs
from kernbench.di.registry import Registry

PositiveCount = Annotated[int, Field(ge=1, le=1_000_000)]


class SizeMm(ConfigModel):
    """Width and height of a die in mm."""

    w: float = Field(gt=0, le=1e6)
    """Width, along the x axis."""
    h: float = Field(gt=0, le=1e6)
    """Height, along the y axis."""


class LinkSpec(ConfigModel):
    """One direction of a link."""

    bw_gbs: Bandwidth
    """Bandwidth of each direction."""
    length_mm: Length | None = None
    """Length of the wire, of which each mm costs ``ns_per_mm``; null: it follows from the positions of the ends."""
    overhead_ns: Duration = 0.0
    """Time that a head spends on the link itself, beside its wire and the parts at its ends."""
    fifo: Literal["bounded", "unbounded"] = "bounded"
    """Whether the FIFO at the far end has a size, so that a full one stops the link."""
    fifo_bytes: Size | None = None
    """Size of the FIFO at the far end; null: as ``transport`` says."""

    @property
    def unbounded(self) -> bool:
        """True when nothing limits what may wait at its far end."""
        return self.fifo == "unbounded"


class BankedSpec(ConfigModel):
    """A memory with banks."""

    banks: PositiveCount = 1
    """Banks, which serve accesses side by side; the bandwidth is that of a bank."""
    bank_bytes: Size = 4096
    """Bytes in one bank before the next has its turn; with one bank it says nothing."""


A_co = TypeVar("A_co", bound=InnerAttrs, covariant=True)


class ComponentSpec(ConfigModel, Generic[A_co]):
    """``{ kind: xbar, impl: builtin.xbar, attrs: {...} }``; the implementing class types ``attrs``.

    That class declares ``Attrs`` as a subclass of its kind's model, with its own keys beside. What the file leaves out
    costs nothing: times are 0. Counts, and the efficiency of HBM, default to the packaged machine's.
    """

    kind: str
    """What stands here: the name of this place."""
    impl: str
    """The class that simulates it: a name of ``kernbench list``, or a dotted path to one of yours."""
    attrs: SerializeAsAny[A_co] = Field(default=None, validate_default=True)
    """The values of this part; which keys there are its class says."""

    @field_validator("impl")
    @classmethod
    def _implements_kind(cls, impl: str, info: ValidationInfo) -> str:
        registry = registry_of(info)
        kinds, kind = registry.kinds_of(implementation_of(registry, impl)), info.data.get("kind")
        if kind is not None and kinds and kind not in kinds:
            raise ValueError(f"{impl!r} implements {one_of(kinds)}, not {kind}")
        return impl

    @field_validator("attrs", mode="plain")
    @classmethod
    def _check_attrs(cls, value: Any, info: ValidationInfo) -> Any:
        impl = info.data.get("impl")
        if impl is None:  # the name was wrong, and has been reported: nothing says which keys are right
            return value
        model = _attrs_model(implementation_of(registry_of(info), impl), cls.model_fields["attrs"].annotation)
        given = {} if value is None else value
        try:
            return read_model(model, given)
        except ValidationError as error:
            raise Rejected(explain(model, given, error)) from error


class Components(ConfigModel):
    """Base of the ``components`` sections, whose keys are the kinds that belong there."""

    @field_validator("*", mode="before")
    @classmethod
    def _fits_place(cls, value: Any, info: ValidationInfo) -> Any:
        kind = value.get("kind") if isinstance(value, dict) else None
        known = registry_of(info).known_kinds()
        if isinstance(kind, str) and kind not in known:
            message = f"unknown kind {kind!r}; {close_to(kind, known)}there are: {one_of(known)}"
            raise Rejected([Complaint(("kind",), message)])
        if isinstance(kind, str) and kind != info.field_name:
            raise Rejected([Complaint(("kind",), f"found {kind!r}, must be {info.field_name!r} in this place")])
        return value


def registry_of(info: ValidationInfo) -> Registry:
    """Return the registry that a topology is validated against."""
    if not isinstance(info.context, Registry):
        raise TypeError("a component is validated against a registry: pass one as context")
    return info.context


def implementation_of(registry: Registry, impl: str) -> type[Part]:
    """Return the class that ``impl`` names. Raises ValueError, for pydantic, when it names none."""
    try:
        return registry.lookup(impl)
    except InputError as error:
        raise ValueError(str(error)) from error


def _attrs_model(part: type[Part], kind_model: Any) -> type[InnerAttrs]:
    """Return the model for the attrs of ``part``: its own, which must extend the kind's, or else the kind's."""
    assert isinstance(kind_model, type)
    assert issubclass(kind_model, InnerAttrs)
    attrs: object = part.Attrs
    if attrs is PartAttrs:
        return kind_model
    if isinstance(attrs, type) and issubclass(attrs, kind_model):
        return attrs
    raise ValueError(f"{part.__name__}.Attrs must be a subclass of {kind_model.__name__}, which this kind needs")


WINDOW_BYTES = 16 << 20
"""Addresses of an extra memory begin at a multiple of this: no two memories share a window of so many."""


def _part_name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", text):
        raise ValueError(f"{text!r} is no name of a part: small letters, digits and _, a letter first")
    return text


class ExtraLink(LinkSpec):
    """A pair of links to a neighbour, one each way, alike."""

    to: str
    """The part at the other end: a kind of its cube or PE, or the name of another extra part."""


class ExtraPart(ComponentSpec[PartAttrs]):
    """``{ impl: my_parts.Scratch, bytes: 1MiB, attrs: {...}, links: [{ to: sram, bw_gbs: 64.0 }] }``."""

    kind: str = ""
    """The kind that its class was registered for; left out, the name of the part."""
    bytes: Size | None = None
    """Capacity of a memory; null: the part is none."""
    links: tuple[ExtraLink, ...] = Field(min_length=1)
    """Links to neighbours, one each way."""

    @field_validator("impl")
    @classmethod
    def _implements_kind(cls, impl: str, info: ValidationInfo) -> str:
        """Check that there is such a class; ``_of_kinds`` checks its kinds once the part's own is known."""
        implementation_of(registry_of(info), impl)
        return impl


def _of_kinds(parts: dict[str, ExtraPart], info: ValidationInfo) -> dict[str, ExtraPart]:
    """Return the parts with their kinds. The kinds a class was registered for bind it, not those of its base."""
    registry, complaints = registry_of(info), []
    for name, part in parts.items():
        kind, cls = part.kind or name, implementation_of(registry, part.impl)
        registered = registry.kinds_of(cls)
        kinds = [each for each in registered if each not in KINDS]
        if kind in KINDS:
            message = f"{kind!r} is a builtin kind; an extra part has another name, or a kind of its own"
            complaints.append(Complaint((name, "kind"), message))
        elif cls.stands_alone and part.impl in registry.known_impls():
            if part.bytes is None:
                complaints.append(Complaint((name, "bytes"), f"{part.impl!r} is a memory: give it bytes, like 1MiB"))
        elif part.impl in registry.known_impls() and not kinds:
            alone = [each for each in registry.known_impls() if registry.lookup(each).stands_alone]
            message = (
                f"{part.impl!r} implements {one_of(registered)}, a builtin kind; derive a class of your own from it"
            )
            message += f", or take {one_of(alone)}" if alone else ""
            complaints.append(Complaint((name, "impl"), message))
        elif kinds and kind not in kinds:
            message = f"{part.impl!r} implements {one_of(kinds)}, not {kind}; write kind: {kinds[0]}"
            complaints.append(Complaint((name, "impl"), message))
    if complaints:
        raise Rejected(complaints)
    return {name: part.model_copy(update={"kind": part.kind or name}) for name, part in parts.items()}


ExtraParts = Annotated[dict[Annotated[str, AfterValidator(_part_name)], ExtraPart], AfterValidator(_of_kinds)]


class WithExtras(ConfigModel):
    """A section with ``extra``; machines without any look as if there were no such key."""

    extra: ExtraParts = Field(default_factory=dict)
    """Further parts of every cube or PE, by name."""

    @model_serializer(mode="wrap")
    def _without_none(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = plain(self)
        return found if self.extra else {name: value for name, value in found.items() if name != "extra"}


@value
class AddressWindow:
    """The addresses of an extra memory: ``nbytes`` from ``offset`` on, in the addresses of its cube or PE."""

    name: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first offset behind it."""
        return self.offset + self.nbytes


def windows(extra: Mapping[str, ExtraPart], behind: int) -> Iterator[AddressWindow]:
    """Yield the windows of the memories among ``extra``, in their order, the first behind offset ``behind``."""
    for name, part in extra.items():
        if part.bytes is not None:
            window = AddressWindow(name, -(-behind // WINDOW_BYTES) * WINDOW_BYTES, part.bytes)
            behind = window.end
            yield window


def unreachable(extra: Mapping[str, ExtraPart]) -> list[str]:
    """Return the parts that have links to each other only."""
    left = dict(extra)
    while True:
        joined = [name for name, part in left.items() if any(link.to not in left for link in part.links)]
        if not joined:
            return list(left)
        for name in joined:
            del left[name]
