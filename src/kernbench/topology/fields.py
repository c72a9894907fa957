"""The types of entries in ``topology.yaml``: single values, classes of links, and what stands at a place.

The class that implements a component is looked up while the file is validated, so that its own ``Attrs`` model checks
``attrs`` and a slip is reported with its line like any other. The registry comes in as the validation context.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, SerializeAsAny, ValidationError, ValidationInfo, field_validator

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
from kernbench.di.part import InnerAttrs, Part, PartAttrs
from kernbench.di.registry import Registry

Count = Annotated[int, Field(ge=1, le=1_000_000)]


class SizeMm(ConfigModel):
    """Width and height of a die in mm."""

    w: float = Field(gt=0, le=1e6)
    h: float = Field(gt=0, le=1e6)


class LinkSpec(ConfigModel):
    """One direction of a link. Without ``length_mm`` the length follows from positions; without ``fifo_bytes`` the
    FIFO at its far end is sized by ``transport``. ``overhead_ns`` is the link's own, beside the nodes'.
    """

    bw_gbs: Bandwidth
    length_mm: Length | None = None
    overhead_ns: Duration = 0.0
    fifo: Literal["bounded", "unbounded"] = "bounded"
    fifo_bytes: Size | None = None

    @property
    def unbounded(self) -> bool:
        """True when nothing limits what may wait at its far end."""
        return self.fifo == "unbounded"


class BankedSpec(ConfigModel):
    """A memory of ``banks``, which take turns every ``bank_bytes``. With one bank the size of a turn says nothing."""

    banks: Count = 1
    bank_bytes: Size = 4096


A_co = TypeVar("A_co", bound=InnerAttrs, covariant=True)


class ComponentSpec(ConfigModel, Generic[A_co]):
    """``{ kind: xbar, impl: builtin.xbar, attrs: {...} }``; ``attrs`` is typed by the implementing class."""

    kind: str
    impl: str
    attrs: SerializeAsAny[A_co] = Field(default=None, validate_default=True)

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
    def _typed_by_class(cls, value: Any, info: ValidationInfo) -> Any:
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
    """The registry that a topology is validated against."""
    if not isinstance(info.context, Registry):
        raise TypeError("a component is validated against a registry: pass one as context")
    return info.context


def implementation_of(registry: Registry, impl: str) -> type[Part]:
    """The class that ``impl`` means. ValueError, for pydantic, when it means none."""
    try:
        return registry.lookup(impl)
    except InputError as error:
        raise ValueError(str(error)) from error


def _attrs_model(part: type[Part], kind_model: Any) -> type[InnerAttrs]:
    """The model for the attrs of ``part``: its own, which must extend the kind's; the kind's when it has none."""
    assert isinstance(kind_model, type)
    assert issubclass(kind_model, InnerAttrs)
    attrs: object = part.Attrs
    if attrs is PartAttrs:
        return kind_model
    if isinstance(attrs, type) and issubclass(attrs, kind_model):
        return attrs
    raise ValueError(f"{part.__name__}.Attrs must be a subclass of {kind_model.__name__}, which this kind needs")
