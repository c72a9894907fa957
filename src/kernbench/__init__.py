"""kernbench: numerics and contended timing of torch-like programs on a multi-die AI accelerator.

    import kernbench as kb

    run = kb.run("attention", "one-cube")

Each name is imported on first use, so importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.common import __version__ as __version__
from kernbench.common.late import late

if TYPE_CHECKING:
    from kernbench.common.errors import AbandonedError as AbandonedError
    from kernbench.common.errors import AddressFaultError as AddressFaultError
    from kernbench.common.errors import AllocationError as AllocationError
    from kernbench.common.errors import BenchError as BenchError
    from kernbench.common.errors import ConfigError as ConfigError
    from kernbench.common.errors import InputError as InputError
    from kernbench.common.errors import IpcqDeadlock as IpcqDeadlock
    from kernbench.common.errors import IpcqError as IpcqError
    from kernbench.common.errors import KernbenchError as KernbenchError
    from kernbench.common.errors import KernelError as KernelError
    from kernbench.common.errors import LimitReached as LimitReached
    from kernbench.common.errors import NoDataError as NoDataError
    from kernbench.common.errors import PartError as PartError
    from kernbench.common.errors import ProgramExitError as ProgramExitError
    from kernbench.common.errors import RunError as RunError
    from kernbench.common.errors import SimulationDeadlock as SimulationDeadlock
    from kernbench.common.errors import UnknownNameError as UnknownNameError
    from kernbench.common.errors import UnsupportedError as UnsupportedError
    from kernbench.common.errors import VerificationError as VerificationError
    from kernbench.library.comparisons import SideBySide as SideBySide
    from kernbench.library.comparisons import compare as compare
    from kernbench.library.evaluations import evaluate as evaluate
    from kernbench.library.lists import describe_bench as describe_bench
    from kernbench.library.lists import describe_timing as describe_timing
    from kernbench.library.lists import list_algorithms as list_algorithms
    from kernbench.library.lists import list_all as list_all
    from kernbench.library.lists import list_benches as list_benches
    from kernbench.library.lists import list_machines as list_machines
    from kernbench.library.lists import list_parts as list_parts
    from kernbench.library.lists import list_probe_cases as list_probe_cases
    from kernbench.library.loading import load as load
    from kernbench.library.machines import CompiledMachine as CompiledMachine
    from kernbench.library.machines import load_machine as load_machine
    from kernbench.library.part_checks import check_part as check_part
    from kernbench.library.probes import Probe as Probe
    from kernbench.library.probes import probe_case as probe_case
    from kernbench.library.progress import ProgressDisplay as ProgressDisplay
    from kernbench.library.progress import RunProgress as RunProgress
    from kernbench.library.running import run as run
    from kernbench.library.runs import Run as Run
    from kernbench.library.sweeps import Sweep as Sweep
    from kernbench.library.sweeps import sweep as sweep
    from kernbench.result.explanation import Explanation as Explanation
    from kernbench.result.table import Table as Table
else:
    _ERRORS = (
        *("AbandonedError", "AddressFaultError", "AllocationError", "BenchError", "ConfigError", "InputError"),
        *("IpcqDeadlock", "IpcqError", "KernbenchError", "KernelError", "LimitReached", "NoDataError", "PartError"),
        *("ProgramExitError", "RunError", "SimulationDeadlock", "UnknownNameError", "UnsupportedError"),
        "VerificationError",
    )
    _NAMES = {
        **dict.fromkeys(_ERRORS, "common.errors"),
        **dict.fromkeys(("describe_bench", "describe_timing", "list_algorithms", "list_all"), "library.lists"),
        **dict.fromkeys(("list_benches", "list_machines", "list_parts", "list_probe_cases"), "library.lists"),
        "check_part": "library.part_checks",
        **dict.fromkeys(("CompiledMachine", "load_machine"), "library.machines"),
        "Explanation": "result.explanation",
        **dict.fromkeys(("ProgressDisplay", "RunProgress"), "library.progress"),
        "Run": "library.runs",
        "Table": "result.table",
        "evaluate": "library.evaluations",
        **dict.fromkeys(("Probe", "probe_case"), "library.probes"),
        **dict.fromkeys(("SideBySide", "compare"), "library.comparisons"),
        **dict.fromkeys(("Sweep", "sweep"), "library.sweeps"),
        "load": "library.loading",
        "run": "library.running",
    }

    def __getattr__(name):
        """Import a public name on first use."""
        module = _NAMES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        public = globals()[name] = late(f"{__name__}.{module}", name)
        return public

    def __dir__():
        """List the public names and the names that are already bound."""
        return sorted({*globals(), *_NAMES})
