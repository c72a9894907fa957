"""The settings of front ends, such as ``--set triton.autotune=search``. Front ends run programs of other libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import version
from importlib.util import find_spec
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from kernbench.common.config import ConfigModel, Document, apply_overrides, check, report


class TritonSettings(ConfigModel):
    """The settings of the Triton front end.

    ``autotune``: use the first configuration, or run each once and use the fastest in simulated time. ``capability``:
    the compute capability that a program sees under --as-cuda. ``order``: the assignment of programs to PEs, see
    ``programs_of``. ``points``: the number of x values that a benchmark measures.
    """

    autotune: Literal["first", "search"] = "first"
    capability: Annotated[float, Field(ge=5.0, lt=100.0)] = 9.0
    order: Literal["cyclic", "blocked"] = "cyclic"
    points: Annotated[int, Field(ge=1)] | None = None

    @property
    def capability_numbers(self) -> tuple[int, int]:
        """The compute capability as two numbers: 8.6 is (8, 6)."""
        return divmod(round(self.capability * 10), 10)


def _check_comm(comm: str) -> str:
    if not re.fullmatch(r"cube|same|pes:[1-9][0-9]{0,5}", comm):
        raise ValueError("must be cube, same or pes:K with a number K, such as pes:2")
    return comm


class TorchSettings(ConfigModel):
    """The settings of the PyTorch front end.

    ``cubes``: the number of cubes over which a tensor is spread in its SIP. ``pes``: the number of PEs in each of these
    cubes, counted from PE 0; None: all. ``compile``: the effect of ``torch.compile``: PyTorch's compiler with the
    backend that the program names, or eager. ``as_cuda``: the device "cuda" of a script is the machine. ``strict``: an
    operator without a kernel is an error. ``from_load``: the reported time of a run includes initialisation.
    ``queue``: launches that a program orders ahead, also of Triton kernels; 0: it waits for each; None: as many as the
    IO_CPU takes. ``comm``: the PEs that run collectives between ranks: ``cube``, the first cube without tensors;
    ``pes:K``, the last K PEs of each cube with tensors; ``same``, the PEs of the tensors; None: ``cube`` if there is
    such a cube.
    """

    as_cuda: bool = False
    comm: Annotated[str, AfterValidator(_check_comm)] | None = None
    compile: Literal["inductor", "eager"] = "inductor"
    cubes: Annotated[int, Field(ge=1)] = 1
    from_load: bool = False
    pes: Annotated[int, Field(ge=1)] | None = None
    queue: Annotated[int, Field(ge=0)] | None = None
    strict: bool = False

    @property
    def comm_pes(self) -> int:
        """The K of ``comm=pes:K``, else 0."""
        _, _, count = (self.comm or "").partition(":")
        return int(count or 0)


class FrontendSettings(ConfigModel):
    """The settings of all front ends."""

    triton: TritonSettings = TritonSettings()
    torch: TorchSettings = TorchSettings()

    @property
    def with_cuda(self) -> FrontendSettings:
        """The same settings, for a program whose device "cuda" is the machine."""
        return self.model_copy(update={"torch": self.torch.model_copy(update={"as_cuda": True})})


FRONTENDS = tuple(FrontendSettings.model_fields)
"""The packages whose programs front ends run; the front ends' modules and extras have the same names."""
_EXTRAS = MappingProxyType({"triton": "triton", "pandas": "triton", "torch": "torch"})


def frontend_settings(overrides: Iterable[str]) -> FrontendSettings:
    """Return the front-end settings after ``overrides``, such as ``triton.order=blocked``.

    Raises ConfigError, which lists all errors of the overrides.
    """
    document = apply_overrides(Document("front ends", {name: {} for name in FRONTENDS}, {}), overrides)
    checked = check(document, FrontendSettings)
    report(document, checked.complaints)
    assert checked.value is not None, "settings without complaints have a value"
    return checked.value


def extra_of(error: BaseException) -> str | None:
    """Return how to fix a failed import of a front end's package; None if another package is missing."""
    missing = (error.name if isinstance(error, ModuleNotFoundError) else None) or ""
    package, _, module = missing.partition(".")
    extra = _EXTRAS.get(package)
    if extra is None:
        return None
    if module and find_spec(package) is not None:
        return f"{package} {version(package)}, which is installed, has no such module"
    return f"install it: pip install 'kernbench[{extra}]'"
