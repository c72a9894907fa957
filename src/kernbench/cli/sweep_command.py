"""``kernbench sweep``: its options. What it does is in ``sweep_run``, which takes long to import."""

from __future__ import annotations

import rich_click as click

from kernbench.cli.completion import complete_override
from kernbench.cli.options import data_options, debug_option, json_option, topology_option
from kernbench.common.data_policy import DataOptions
from kernbench.common.late import late
from kernbench.evaluation.sweep_processes import begin_server

RUN = "kernbench.cli.sweep_run"
LOCAL = "local"


@click.command(name="sweep")
@click.argument("spec", metavar="SPEC.yaml")
@click.option(
    "--executor",
    default=LOCAL,
    show_default=True,
    metavar="EXECUTOR",
    help="Who runs the points: local (processes here), dask://HOST:PORT, or dask://local (a cluster made for it).",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes to run on here.  [default: all cores]")
@click.option("--resume", is_flag=True, help="Go on with a sweep that was interrupted: run what is missing.")
@click.option("--force", is_flag=True, help="Overwrite the results of a sweep that are there.")
@click.option("--allow-failures", is_flag=True, help="Exit with 0 although points failed.")
@click.option("--out", metavar="DIR", help="Where results go.  [default: results/sweep/NAME]")
@click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    shell_complete=complete_override,
    help="Change a value of the machine or a parameter of the bench, at all points.",
)
@click.option("--ccl", metavar="FILE", help="How collectives work.  [default: ./ccl.yaml, else the packaged file]")
@data_options
@topology_option
@json_option
@debug_option
def command(
    spec: str,
    executor: str,
    jobs: int | None,
    resume: bool,
    force: bool,
    allow_failures: bool,
    out: str | None,
    overrides: tuple[str, ...],
    ccl: str | None,
    values: DataOptions,
    topology: str | None,
    as_json: bool,
) -> int:
    """Run a grid of machine and bench parameters in parallel: one Parquet file, and pictures."""
    if executor == LOCAL:
        begin_server()
    code: int = late(RUN, "sweep")(
        late(RUN, "SweepOptions")(
            spec=spec,
            executor=executor,
            jobs=jobs,
            resume=resume,
            force=force,
            allow_failures=allow_failures,
            out=out,
            overrides=overrides,
            topology=topology,
            ccl=ccl,
            values=values,
            as_json=as_json,
        )
    )
    return code
