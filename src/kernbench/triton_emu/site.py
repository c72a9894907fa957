"""Where a kernel runs and on what."""

from __future__ import annotations

from kernbench.common.dtypes import DType
from kernbench.common.values import value


@value(kw_only=True)
class KernelSite:
    """The PE that runs a kernel, how many PEs, cubes and SIPs take part, and which kernel it is.

    ``file`` is the kernel's source file (``program_file(kernel)``); ``dot_dtypes`` are the operand types that
    the machine's GEMM unit has a rate for; ``tcm``: the physical addresses of its own TCM, None: any will do.
    """

    sip: int
    cube: int
    pe: int
    num_pes: int
    num_cubes: int
    num_sips: int
    kernel: str
    file: str
    dot_dtypes: tuple[DType, ...]
    tcm: range | None = None

    @property
    def ids(self) -> tuple[int, int, int]:
        """PE in its cube, cube in its SIP, SIP: the axes of ``program_id``."""
        return self.pe, self.cube, self.sip

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many of each take part: the axes of ``num_programs``."""
        return self.num_pes, self.num_cubes, self.num_sips

    def __str__(self) -> str:
        return f"PE {self.pe} of cube {self.cube} of SIP {self.sip}"
