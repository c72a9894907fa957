"""What a rank knows of a distributed tensor, and its own part of it."""

from __future__ import annotations

from dataclasses import replace

from kernbench.common.dtypes import DType
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.dtensor.device_mesh import DeviceMesh
from kernbench.dtensor.local import LocalTensors
from kernbench.dtensor.placements import Placements, local_window
from kernbench.dtensor.plan import sent_bytes
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.placement.geometry import Window
from kernbench.runtime_api.tensor import Tensor


@value(kw_only=True)
class DTensorSpec:
    """A tensor of ``shape`` over a mesh, the same on all ranks. ``dp``: how parts lie in a SIP; None: by their size."""

    mesh: DeviceMesh
    placements: Placements
    shape: tuple[int, ...]
    dtype: DType
    dp: DPPolicy | None = None

    def window(self, placements: Placements | None = None) -> Window:
        """This rank's part, with its own or other placements."""
        wanted = self.placements if placements is None else placements
        return local_window(self.shape, wanted, self.mesh.shape, self.mesh.get_coordinate())

    def cost_of(self, target: Placements) -> float:
        """Bytes that a rank sends, about, to get to these placements."""
        return sent_bytes(self.placements, target, self.shape, self.dtype.itemsize, self.mesh.shape)


@value
class RankPart:
    """A distributed tensor as one rank has it."""

    spec: DTensorSpec
    local: Tensor

    @property
    def tensors(self) -> LocalTensors:
        """What makes tensors that lie as this one's parts do."""
        return LocalTensors(self.spec.mesh.torch, self.spec.dp)

    def placed(self, placements: Placements, local: Tensor) -> RankPart:
        """The same tensor with other placements."""
        return RankPart(replace(self.spec, placements=placements), local)

    def check_live(self) -> None:
        """InputError when the local tensor has been freed: before work begins that would be left half done."""
        if not self.local.is_live:
            raise InputError(f"tensor {self.local.name!r} has been freed")

    def free_unless(self, kept: RankPart) -> None:
        """Free the local tensor, if it is not that of ``kept``."""
        if self.local is not kept.local:
            self.local.free()
