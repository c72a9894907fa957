"""What every component implementation is, as far as the registry and the topology need to know."""

from __future__ import annotations

from typing import ClassVar

from kernbench.common.config import ConfigModel, Duration

COMPONENT = "kernbench.sim_engine.component.Component"
"""The class to derive a part from, by the name that users import it by"""


class InnerAttrs(ConfigModel):
    """The ``attrs`` of a part that no packet enters, such as an engine of a PE: it has none of its own."""


class PartAttrs(InnerAttrs):
    """The ``attrs`` of a part in YAML. A class that wants more keys declares a subclass of its kind's model."""

    overhead_ns: Duration = 0.0


class Part:
    """Base of every component class; ``COMPONENT`` names the one to derive from.

    ``Attrs`` is the model that checks the ``attrs`` of the class in YAML; left as it is, that of the kind does.
    """

    Attrs: ClassVar[type[InnerAttrs]] = PartAttrs
