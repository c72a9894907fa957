"""Read files that commands wrote: documents of runs and folders of sweeps, also those of earlier versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.common.late import late
from kernbench.library.runs import Run
from kernbench.result.sections import RunOutcome, read_outcome, sections

if TYPE_CHECKING:
    from kernbench.library.sweeps import Sweep

SWEEPS = "kernbench.library.sweeps"
PARQUET = ".parquet"


def load(path: str | os.PathLike[str]) -> Run | Sweep:
    """Read a file that a command wrote: the JSON of a run, or the folder or Parquet file of a sweep.

    Raises InputError for anything else, with the command that writes such a file.
    """
    place = Path(path)
    if place.is_dir() or place.suffix == PARQUET:
        sweep: Sweep = late(SWEEPS, "load_sweep")(place)
        return sweep
    outcome = read_outcome(place)
    return run_of(outcome.document, outcome.origin)


def run_of(document: Mapping[str, Any], origin: str = "document") -> Run:
    """Return the run that a document describes; ``origin`` is its file. Raises InputError for another document."""
    outcome = RunOutcome(document=document, origin=origin)
    for section in sections():
        outcome.find(section)
    return Run(outcome)
