"""The choices of a user for a run, in groups, each declared once.

A field of a group describes its other forms: ``RunOption`` has its option of commands and its keyword in the library.
All choices are plain values that pickle. This file imports nothing heavy, because commands read it before they run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from kernbench.common.data_policy import KEEP_BYTES, DataPolicy
from kernbench.common.errors import InputError
from kernbench.common.units import parse_size
from kernbench.common.values import value

if TYPE_CHECKING:
    from kernbench.ccl.config import CclConfig

CommandName: TypeAlias = Literal["run", "web", "sweep"]
Scope: TypeAlias = Literal["simulation", "evaluation"]
RankCount: TypeAlias = "int | Literal['all']"
"""A number of ranks; ``all``: one for each SIP"""
CclSource: TypeAlias = "str | os.PathLike[str] | CclConfig | None"
RUN: tuple[CommandName, ...] = ("run",)
PAGES: tuple[CommandName, ...] = ("run", "web")
SWEEPS: tuple[CommandName, ...] = ("run", "web", "sweep")
SCRIPT_WALL_S = 600.0
"""Default limit of commands for a script, in seconds: a program with GPU-sized tensors could take days"""


SAMPLES = 2
"""Samples of a kind of launches by default"""
LOG_ROWS = "4M"
"""Rows of the log beyond which launches that are over are folded, by default"""
_ROW_UNITS = {"": 1, "K": 10**3, "M": 10**6}


@value(kw_only=True)
class ReuseRules:
    """The rules of a run that reuses launches.

    ``samples``: simulated launches of a kind before others pass. ``check``: the number of further launches to simulate
    that would pass. Raises InputError for less than 1 sample, or a negative ``check``.
    """

    samples: int = SAMPLES
    check: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"--reuse-samples: found {self.samples}, must be at least 1")
        if self.check < 0:
            raise InputError(f"--reuse-check: found {self.check}, must be at least 0")


@value(kw_only=True)
class RunOption:
    """A choice and its forms on the command line and in the library.

    ``name``, ``type``, ``default``: those of its field; ``title``: that of its group. ``help``: a sentence for
    ``--help``; empty for a choice that is no option. ``flag``: the option; None: the name with dashes. ``metavar``: the
    form of the value, with its unit. ``commands``: the commands with this option. ``keyword``: the keyword of
    ``kb.run``, or None. ``setting``: the front-end setting that the option sets. ``scope``: the only kind of program
    that accepts the option. ``alone``: the value of an option that may be written without one.
    """

    name: str
    type: str
    default: object
    title: str = ""
    help: str = ""
    flag: str | None = None
    metavar: str | None = None
    commands: tuple[CommandName, ...] = SWEEPS
    keyword: str | None = None
    setting: str | None = None
    scope: Scope | None = None
    alone: str | None = None

    @property
    def spelling(self) -> str:
        """The option, such as ``--op-log``."""
        return self.flag or f"--{self.name.replace('_', '-')}"

    @property
    def opposite(self) -> str | None:
        """The option that turns a switch off, such as ``--no-data``; None for an option without this form."""
        is_switch = self.type.startswith("bool") and self.default is not False
        return f"--no-{self.spelling.removeprefix('--')}" if is_switch else None


def option(help_text: str = "", default: Any = None, **forms: Any) -> Any:
    """Declare a field of a group with its forms, see ``RunOption``."""
    return field(default=default, metadata={"help": help_text, **forms})


def group(kind: Callable[[], object], title: str, **forms: Any) -> Any:
    """Declare a group. ``title``: its heading in ``--help``; ``forms``: those of its options by default."""
    return field(default_factory=kind, metadata={"title": title, **forms})


def list_options(kind: type[RunRequest]) -> Iterator[RunOption]:
    """Yield the options of all groups of a request."""
    for part in fields(kind):
        options: Any = part.default_factory
        yield from (
            RunOption(
                name=entry.name, type=str(entry.type), default=entry.default, **{**part.metadata, **entry.metadata}
            )
            for entry in fields(options)
            if entry.metadata
        )


@value(kw_only=True)
class ProgramOptions:
    """The program: a bench or a script, its parameters, and the settings of its front end.

    ``bench``: a registered name, ``file.py[:function]`` or ``module:function``. ``args``: the arguments of the script.
    ``ranks``: the number of ranks that run the script, as torchrun starts them; None: it runs once, without ranks.
    ``params``, ``settings``: bench parameters and front-end settings as texts, ``bench.m=512`` and ``torch.cubes=4``.
    """

    bench: str | None = option(
        "Run this bench: a name of 'kernbench list', or a function of a file.",
        metavar="NAME|FILE.py[:FUNCTION]",
        keyword="program",
    )
    script: str | None = option(
        "Run a whole file as the program, with the arguments after --.", metavar="FILE.py", keyword="script"
    )
    args: tuple[str, ...] = option(default=(), keyword="args")
    as_cuda: bool = option(
        'Map the PyTorch device "cuda" to the machine (with --script).',
        False,
        keyword="as_cuda",
        setting="torch.as_cuda",
    )
    ranks: RankCount | None = option(
        "Run the script once for each of N ranks, as torchrun does; without N, one rank for each SIP (with --script).",
        metavar="[N]",
        keyword="ranks",
        alone="all",
    )
    params: tuple[str, ...] = option(default=(), keyword="params")
    settings: tuple[str, ...] = option(default=(), keyword="settings")
    strict: bool = option(
        "Fail at a PyTorch operator that the host would compute.", False, setting="torch.strict", commands=SWEEPS
    )
    from_load: bool = option(
        "Count the initialisation of a PyTorch program in its time.", False, setting="torch.from_load", commands=SWEEPS
    )
    points: int | None = option(
        "Run only the first N x values of a Triton benchmark.",
        metavar="N",
        keyword="points",
        setting="triton.points",
        commands=SWEEPS,
    )

    @property
    def setting_texts(self) -> tuple[str, ...]:
        """The front-end settings as texts, those with an option of their own last."""
        shortcuts = [(entry, getattr(self, entry.name)) for entry in fields(self) if "setting" in entry.metadata]
        chosen = [(entry.metadata["setting"], choice) for entry, choice in shortcuts if choice != entry.default]
        return (*self.settings, *(f"{path}={json.dumps(choice)}" for path, choice in chosen))


@value(kw_only=True)
class MachineOptions:
    """The machine. ``overrides``: ``path=value`` texts for the machine, the bench and the front ends."""

    topology: str | None = option(
        "Use this machine: a name of 'kernbench list', or a YAML file.  [default: ./topology.yaml, else 'default']",
        metavar="NAME|FILE",
        keyword="machine",
    )
    overrides: tuple[str, ...] = option(
        "Change machine or bench values, such as cube.hbm.slices=16 or bench.m=512 (repeatable).",
        (),
        flag="--set",
        metavar="PATH=VALUE",
    )
    device: str = option(
        "Run on one device (SIP) or on all.  [default: all]",
        "all",
        metavar="sip:N|all",
        commands=PAGES,
        keyword="device",
    )
    ccl: CclSource = option(
        "Read collective algorithms from FILE.  [default: ./ccl.yaml, else the packaged file]",
        metavar="FILE",
        keyword="ccl",
    )


@value(kw_only=True)
class DataOptions:
    """The values that a run stores, and their check.

    ``data`` turns the storing of values on or off (None: as the bench declares). ``keep`` limits the stored bytes, for
    example to ``"2GiB"``. ``share`` is the number of concurrent runs that share the limit.
    """

    verify: bool = option(
        "Compute values and evaluate the comparisons of the bench; a mismatch exits with 1.",
        False,
        flag="--verify-data",
        commands=PAGES,
        keyword="verify",
        scope=None,
    )
    data: bool | None = option(
        "Record what is needed to compute values.  [default: record, unless the bench sets data = False]",
        keyword="data",
    )
    keep: str | None = option("Keep at most SIZE of unread values.  [default: 1GiB]", metavar="SIZE")
    zeros: bool = option("Return zeros for values that the program reads (with --no-data).", False)
    share: int = 1

    def policy(self, *, sanitize: bool = False, bench: bool = True) -> DataPolicy:
        """Return the policy of a run. ``bench`` is the default that the bench declares.

        ``--data``, ``--verify-data`` and ``--sanitize`` store all values unless ``--keep`` sets a limit. Raises
        InputError for options that contradict each other.
        """
        needed = "--verify-data" if self.verify else "--sanitize" if sanitize else None
        if self.data is False and needed is not None:
            raise InputError(f"--no-data and {needed}, which needs data: give one of the two")
        if self.zeros and self.data is not False:
            raise InputError("--zeros is for runs without data: give --no-data --zeros")
        if self.keep is not None and self.data is False:
            raise InputError("--keep limits the stored data, and --no-data stores none: give one of the two")
        if self.keep is not None and sanitize:
            raise InputError("--sanitize needs all data: leave --keep out")
        keep = self.data if self.data is not None else needed is not None or bench
        most = KEEP_BYTES if self.data is None and needed is None else None
        if self.keep is not None:
            most = _parse_limit(self.keep)
        return DataPolicy(keep, None if most is None or not keep else most // self.share, self.zeros)


def _parse_limit(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise InputError(f"--keep: {error}") from None


@value(kw_only=True)
class LimitOptions:
    """The limits of a run in simulated ns and in seconds of real time. None or infinity: no limit.

    ``log_rows``: rows of the log beyond which the rows of launches that are over are folded: a number, or a text.
    """

    max_sim_ns: float | None = option("Stop the run at this simulated time.", metavar="NS", keyword="max_sim_ns")
    max_wall_s: float | None = option(
        f"Stop the run after S seconds of real time.  [default: {SCRIPT_WALL_S:.0f} for a script]",
        metavar="S",
        keyword="max_wall_s",
    )
    log_rows: int | str = option(
        f"Beyond N rows of the log, such as 500K, fold the rows of launches that are over.  [default: {LOG_ROWS}]",
        LOG_ROWS,
        metavar="N",
        keyword="log_rows",
        commands=SWEEPS,
    )

    @property
    def most_rows(self) -> int:
        """The number of ``log_rows``. Raises InputError for anything but a number from 1, with K or M if need be."""
        text = str(self.log_rows)
        unit = text[-1:].upper() if text[-1:].upper() in _ROW_UNITS else ""
        digits = text.removesuffix(text[-1:]) if unit else text
        if not (digits.isascii() and digits.isdigit() and int(digits)):
            raise InputError(f"--log-rows: found {text}, must be a whole number from 1, such as 500K or 4M")
        return int(digits) * _ROW_UNITS[unit]


@value(kw_only=True)
class ReuseOptions:
    """The reuse of launches: the time of a launch passes if launches like it have been simulated."""

    reuse: bool = option(
        "Simulate the first launches of each kind, and let the time of others pass (with --no-data).",
        False,
        keyword="reuse",
    )
    reuse_samples: int = option(
        f"Simulate N launches of each kind.  [default: {SAMPLES}]", SAMPLES, metavar="N", keyword="reuse_samples"
    )
    reuse_check: int = option(
        "Simulate N more launches that would pass, chosen at random, and print the error on them.",
        0,
        metavar="N",
        keyword="reuse_check",
    )

    def rules(self, *, keeps_data: bool) -> ReuseRules | None:
        """Return the rules of a run, None without reuse.

        Raises InputError in a run that keeps data, and for choices that need ``reuse`` or are out of range.
        """
        if not self.reuse:
            wrong = [name for name in ("reuse_samples", "reuse_check") if getattr(self, name) != _default_of(name)]
            if wrong:
                raise InputError(f"--{wrong[0].replace('_', '-')} needs --reuse: give both, or none")
            return None
        if keeps_data:
            raise InputError("--reuse is for runs without data: give --reuse --no-data")
        return ReuseRules(samples=self.reuse_samples, check=self.reuse_check)


def _default_of(name: str) -> object:
    return next(entry.default for entry in fields(ReuseOptions) if entry.name == name)


@value(kw_only=True)
class OutputOptions:
    """The files to write besides the report. An evaluation writes the last three."""

    op_log: str | None = option("Write the op-log to FILE.parquet or FILE.jsonl.", metavar="FILE")
    trace: str | None = option("Write a timeline for ui.perfetto.dev or chrome://tracing.", metavar="FILE.json")
    trace_filter: str | None = option(
        "Select parts and track types of the timeline; ! excludes, for example sip0.cube0.*,!links.", metavar="GLOBS"
    )
    roofline: str | None = option("Draw a roofline plot of the launches.", metavar="FILE.png")
    out: str | None = option(
        "Write an evaluation to FOLDER.  [default: results/NAME]", metavar="FOLDER", scope="evaluation"
    )
    reference: str | None = option(
        "Compare the collectives of milestone-1h-ccl with the figures of this file.",
        metavar="FILE.csv",
        scope="evaluation",
    )
    render_only: bool = option(
        "Redraw the figures of a milestone bench from its data, without a run.", False, scope="evaluation"
    )


@value(kw_only=True)
class ObservationOptions:
    """The records and reports of the time and the errors of a run."""

    explain: bool = option("Print first where the time went: critical path, source lines, roofline.", False)
    energy: bool = option(
        "Print the energy of the run by part and link, its power, and the area of the machine.", False
    )
    advise: bool = option("Simulate the run again with each limiting resource 10 % faster.", False, keyword="advise")
    observe: bool = option(
        "Record causes for the verdict; without them the run is a sixth faster.  [default: observe]",
        True,
        keyword="observe",
    )
    sanitize: bool = option("Report reads of unwritten bytes, races and full scratch.", False)
    trace_ccl: bool = option("Print each message that a PE sends or receives.", False)


@value(kw_only=True)
class RunRequest:
    """The choices of a user for a run, in groups. ``prepare_run`` loads and checks them."""

    program: ProgramOptions = group(ProgramOptions, "Program", commands=PAGES)
    machine: MachineOptions = group(MachineOptions, "Machine")
    data: DataOptions = group(DataOptions, "Data", scope="simulation")
    reuse: ReuseOptions = group(ReuseOptions, "Reuse", scope="simulation")
    limits: LimitOptions = group(LimitOptions, "Limits", commands=PAGES, scope="simulation")
    outputs: OutputOptions = group(OutputOptions, "Outputs", commands=RUN, scope="simulation")
    observation: ObservationOptions = group(ObservationOptions, "Explanation", commands=RUN, scope="simulation")

    @classmethod
    def of(cls, **choices: object) -> Self:
        """Return a request from choices by the names of their fields. Raises TypeError for an unknown name."""
        groups: dict[str, object] = {}
        for entry in fields(cls):
            kind: Any = entry.default_factory
            names = {choice.name for choice in fields(kind)} & choices.keys()
            groups[entry.name] = kind(**{name: choices.pop(name) for name in names})
        if choices:
            raise TypeError(f"a run has no choice {', '.join(choices)}")
        return cls(**groups)  # type: ignore[arg-type]

    @property
    def override_texts(self) -> tuple[str, ...]:
        """The changes of the machine, the bench and the front ends, as ``path=value`` texts."""
        return (*self.machine.overrides, *self.program.params, *self.program.setting_texts)

    def list_flags(self, scope: Scope) -> list[str]:
        """Return the chosen options that only programs of ``scope`` accept."""
        parts = [getattr(self, part.name) for part in fields(self)]
        choices = {entry.name: getattr(part, entry.name) for part in parts for entry in fields(part)}
        options = [entry for entry in list_options(type(self)) if entry.scope == scope]
        return [
            entry.opposite if entry.opposite and choices[entry.name] is False else entry.spelling
            for entry in options
            if choices[entry.name] != entry.default
        ]
