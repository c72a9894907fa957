"""Base machines of a sweep: one for all points, or one for each value of the axis ``machine``.

grid: { machine: [default, one-cube, ./my.yaml], cube.hbm.num_pcs: [4, 8] }

A value is the name of a packaged machine, or a file beside the sweep file. Fixed values and the other axes change the
base machine of a point.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernbench.common.complaints import show
from kernbench.common.config import Document
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.evaluation.sweep_measure import flat_configuration
from kernbench.evaluation.sweep_spec import MACHINE, AxisValue
from kernbench.topology.builder import Topology, is_machine_name, machine_file

BASE = ""
"""The name of the base machine of a sweep without the axis ``machine``"""


@value
class BaseMachine:
    """A base machine: its file as read, and the compiled machine."""

    document: Document
    topology: Topology

    @property
    def configuration(self) -> dict[str, Any]:
        """The resolved machine by path."""
        return flat_configuration(self.topology.configuration)


def base_name(choices: Mapping[str, AxisValue]) -> str:
    """Return the name of the base machine of a point; ``choices``: the values of the point on the axes."""
    return str(choices.get(MACHINE, BASE))


def locate_machine(content: AxisValue, folder: Path) -> str:
    """Return the file of a value of the axis ``machine``. ``folder``: the folder of the sweep file.

    Raises InputError for a value that is no text, for an unknown name, and for a missing file.
    """
    if not isinstance(content, str):
        raise InputError(f"found {show(content)}, must be the name of a packaged machine or a file")
    if is_machine_name(content, folder):
        return machine_file(content, folder)
    file = folder / content
    if not file.is_file():
        raise InputError(f"{file}: no such file")
    return str(file)
