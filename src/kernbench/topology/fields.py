"""The types of entries in ``topology.yaml``: values, classes of links, builtin components, and extra components.

Validation looks up the class that implements a component. The ``Attrs`` model of the class checks ``attrs``, so errors
there are reported with their lines. The registry is the validation context.
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
    """The settings of a class of links; both directions of a link have the same."""

    bw_gbs: Bandwidth
    """Bandwidth of each direction."""
    length_mm: Length | None = None
    """Length of the wire; each mm costs ``ns_per_mm``. null: the length follows from the positions of the ends."""
    overhead_ns: Duration = 0.0
    """Latency that the link itself adds to a head, besides its wire and the components at its ends."""
    fifo: Literal["bounded", "unbounded"] = "bounded"
    """Kind of the FIFO at the receiving end: bounded (a full FIFO stops the link) or unbounded."""
    fifo_bytes: Size | None = None
    """Size of the FIFO at the receiving end; null: the size in ``transport``."""

    @property
    def unbounded(self) -> bool:
        """True if the FIFO at the receiving end has no limit."""
        return self.fifo == "unbounded"


class BankedSpec(ConfigModel):
    """A memory with banks."""

    banks: PositiveCount = 1
    """Number of banks, which serve accesses in parallel; the memory's bandwidth figure is the bandwidth of one bank."""
    bank_bytes: Size = 4096
    """Consecutive bytes on a bank before addresses go to the next bank; unused with one bank."""


A_co = TypeVar("A_co", bound=InnerAttrs, covariant=True)


class ComponentSpec(ConfigModel, Generic[A_co]):
    """``{ kind: xbar, impl: builtin.xbar, attrs: {...} }``; the implementing class types ``attrs``.

    The class declares ``Attrs`` as a subclass of the model of its kind and may add keys. Times default to 0. Counts and
    the efficiency of HBM default to the values of the packaged machine.
    """

    kind: str
    """Kind of the component: the name of its place."""
    impl: str
    """Class that simulates the component: a name of ``kernbench list``, or a dotted path to your own class."""
    attrs: SerializeAsAny[A_co] = Field(default=None, validate_default=True)
    """Attributes of the component; its class defines the keys."""

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
        if impl is None:  # the name was wrong and is reported, so the allowed keys are unknown
            return value
        model = _attrs_model(implementation_of(registry_of(info), impl), cls.model_fields["attrs"].annotation)
        attrs = {} if value is None else value
        try:
            return read_model(model, attrs)
        except ValidationError as error:
            raise Rejected(explain(model, attrs, error)) from error


class Components(ConfigModel):
    """Base of the ``components`` sections; the keys of a section are the kinds of its place."""

    @field_validator("*", mode="before")
    @classmethod
    def _fits_place(cls, value: Any, info: ValidationInfo) -> Any:
        kind = value.get("kind") if isinstance(value, dict) else None
        kinds = registry_of(info).known_kinds()
        if isinstance(kind, str) and kind not in kinds:
            message = f"unknown kind {kind!r}; {close_to(kind, kinds)}there are: {one_of(kinds)}"
            raise Rejected([Complaint(("kind",), message)])
        if isinstance(kind, str) and kind != info.field_name:
            raise Rejected([Complaint(("kind",), f"found {kind!r}, must be {info.field_name!r} in this place")])
        return value


def registry_of(info: ValidationInfo) -> Registry:
    """Return the registry in the validation context. Raises TypeError if there is none."""
    if not isinstance(info.context, Registry):
        raise TypeError("a component is validated against a registry: pass one as context")
    return info.context


def implementation_of(registry: Registry, impl: str) -> type[Part]:
    """Return the class that ``impl`` names. Raises ValueError, which pydantic reports, if there is no such class."""
    try:
        return registry.lookup(impl)
    except InputError as error:
        raise ValueError(str(error)) from error


def _attrs_model(part: type[Part], kind_model: Any) -> type[InnerAttrs]:
    """Return the model for the attrs of ``part``: its ``Attrs``, or by default the model of the kind.

    ``Attrs`` must extend the model of the kind.
    """
    assert isinstance(kind_model, type)
    assert issubclass(kind_model, InnerAttrs)
    attrs: object = part.Attrs
    if attrs is PartAttrs:
        return kind_model
    if isinstance(attrs, type) and issubclass(attrs, kind_model):
        return attrs
    raise ValueError(f"{part.__name__}.Attrs must be a subclass of {kind_model.__name__}, which this kind needs")


WINDOW_BYTES = 16 << 20
"""Alignment of the first address of an extra memory: no two memories share a window of this size."""


def _part_name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", text):
        raise ValueError(f"{text!r} is no name of a part: small letters, digits and _, a letter first")
    return text


class ExtraLink(LinkSpec):
    """Two equal links to a neighbour, one in each direction."""

    to: str
    """Component at the other end: a kind of the same cube or PE, or the name of another extra part."""


class ExtraPart(ComponentSpec[PartAttrs]):
    """``{ impl: my_parts.Scratch, bytes: 1MiB, attrs: {...}, links: [{ to: sram, bw_gbs: 64.0 }] }``."""

    kind: str = ""
    """Kind for which the class of the part is registered; the default is the name of the part."""
    bytes: Size | None = None
    """Capacity, if the part is a memory; null: it is no memory."""
    links: tuple[ExtraLink, ...] = Field(min_length=1)
    """Links to neighbours, one in each direction."""

    @field_validator("impl")
    @classmethod
    def _implements_kind(cls, impl: str, info: ValidationInfo) -> str:
        """Check that the class exists; ``_of_kinds`` checks its kinds later, when the kind of the part is known."""
        implementation_of(registry_of(info), impl)
        return impl


def _of_kinds(parts: dict[str, ExtraPart], info: ValidationInfo) -> dict[str, ExtraPart]:
    """Return the parts with their kinds.

    A class stands only for the kinds that it was itself registered for, not for those of its base.
    """
    registry, complaints = registry_of(info), []
    for name, part in parts.items():
        kind, cls = part.kind or name, implementation_of(registry, part.impl)
        registered = registry.kinds_of(cls)
        kinds = [registered_kind for registered_kind in registered if registered_kind not in KINDS]
        if kind in KINDS:
            message = f"{kind!r} is a builtin kind; an extra part has another name, or a kind of its own"
            complaints.append(Complaint((name, "kind"), message))
        elif cls.stands_alone and part.impl in registry.known_impls():
            if part.bytes is None:
                complaints.append(Complaint((name, "bytes"), f"{part.impl!r} is a memory: give it bytes, like 1MiB"))
        elif part.impl in registry.known_impls() and not kinds:
            alone = [impl for impl in registry.known_impls() if registry.lookup(impl).stands_alone]
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
    """A section with the key ``extra``; plain data omit the key for a machine without extra parts."""

    extra: ExtraParts = Field(default_factory=dict)
    """Additional components of every cube or PE, by name."""

    @model_serializer(mode="wrap")
    def _without_none(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = plain(self)
        return content if self.extra else {name: value for name, value in content.items() if name != "extra"}


@value
class AddressWindow:
    """The addresses of an extra memory: ``nbytes`` from ``offset`` on, in the address space of its cube or PE."""

    name: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first offset after the window."""
        return self.offset + self.nbytes


def windows(extra: Mapping[str, ExtraPart], start: int) -> Iterator[AddressWindow]:
    """Yield the windows of the memories in ``extra``, in order; the first starts at or after offset ``start``."""
    for name, part in extra.items():
        if part.bytes is not None:
            window = AddressWindow(name, -(-start // WINDOW_BYTES) * WINDOW_BYTES, part.bytes)
            start = window.end
            yield window


def unreachable(extra: Mapping[str, ExtraPart]) -> list[str]:
    """Return the extra parts that are linked only to each other."""
    isolated = dict(extra)
    while True:
        joined = [name for name, part in isolated.items() if any(link.to not in isolated for link in part.links)]
        if not joined:
            return list(isolated)
        for name in joined:
            del isolated[name]
