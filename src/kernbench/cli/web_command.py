"""``kernbench web``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import rich_click as click

import kernbench.benches
from kernbench.cli.completion import complete_bench, complete_override
from kernbench.cli.console import Json, facts, print_json, say, show, show_progress, stdout
from kernbench.cli.failures import error_document, report_program_error
from kernbench.cli.options import (
    ccl_option,
    data_options,
    debug_option,
    json_option,
    topology_option,
    verbose_option,
    verify_option,
)
from kernbench.cli.session import Session
from kernbench.common.data_policy import UNSAID, DataOptions
from kernbench.common.errors import InputError
from kernbench.common.files import writable
from kernbench.common.program_line import place_document
from kernbench.common.units import format_ns, format_size
from kernbench.library.progress import StepProgress
from kernbench.library.run_document import verification_document
from kernbench.runtime_api.bench_runner import BenchResult, BenchStatus
from kernbench.web.page import FileSource, Made, PageSource, RunSource
from kernbench.web.server import PageServer, Shelf, Watcher, serve

# Importing the package is what makes its benches known.
BENCHES = kernbench.benches.__name__
DEFAULT_OUT = "report.html"


@click.command(name="web")
@click.argument("page", required=False, metavar="[PAGE.html]")
@click.option(
    "--bench",
    metavar="NAME|FILE.py[:FUNCTION]",
    shell_complete=complete_bench,
    help="What to run.  [default: nothing, the machine only]",
)
@click.option("--device", default="all", show_default=True, metavar="sip:N|all", help="The SIPs it may use.")
@click.option("--out", metavar="FILE.html", help=f"Where to write the page.  [default: {DEFAULT_OUT}, without --port]")
@verify_option
@data_options
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Serve it on this port; 0 takes a free one.")
@click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    shell_complete=complete_override,
    help="Change a value of the machine (cube.hbm.slices=16) or a parameter of the bench (bench.m=512).",
)
@ccl_option
@topology_option
@json_option
@verbose_option
@debug_option
@click.pass_obj
def command(
    session: Session,
    page: str | None,
    bench: str | None,
    device: str,
    out: str | None,
    verify: bool,
    values: DataOptions,
    port: int | None,
    overrides: tuple[str, ...],
    ccl: str | None,
    topology: str | None,
    as_json: bool,
) -> int:
    """The machine, and a run on it, as a page for the browser: one file that needs nothing else.

    With --port it is served to this computer, and browsers show the new page when the topology or the bench's file
    changes; kernbench web PAGE.html --port N serves a page that was written before, whenever it changes.
    """
    if page is not None:
        asked = (bench, out, topology, ccl)
        if any(each is not None for each in asked) or overrides or verify or values != UNSAID:
            raise InputError(f"{page} is served as it is: of the options, only --port says something about it")
        return _serve_file(Path(page), port)
    source = RunSource(bench, topology, overrides, device, ccl, values, verify)
    place = None if out is None and port is not None else writable(out or DEFAULT_OUT)
    # A port that is taken is better found before a long run.
    server = None if port is None else PageServer(Shelf(), port)
    watcher = None if server is None else Watcher(source, server)
    made = _make(source)
    if place is not None:
        made.page.write(place)
        say(f"wrote {place}, and {place.name}.config.yaml with the machine it was made on")
    _tell(made, place, None if server is None else server.url, as_json=as_json)
    if made.result is not None and made.result.error is not None:
        report_program_error(made.result.error, session)
    elif made.result is not None and not made.result.ok:
        click.echo(f"error: {_what_is_wrong(made.result)}", err=True)
    if watcher is not None:
        watcher.server.shelf.put(made.page.content)
        _serve(watcher)
    return 0 if made.result is None else made.result.exit_code


def _what_is_wrong(result: BenchResult) -> str:
    """Of a run that raised nothing."""
    if result.status is BenchStatus.NO_REQUESTS:
        return f"bench {result.bench!r} submitted no request, so nothing was simulated"
    return f"bench {result.bench!r}: {result.completion.error or result.status.value}"


def _make(source: RunSource) -> Made:
    with show_progress() as display:
        display(StepProgress("the machine" if source.bench is None else f"simulating {source.bench}", 0, 1))
        return source.make()


def _tell(made: Made, place: Path | None, url: str | None, *, as_json: bool) -> None:
    """Tell on stdout which page was made."""
    result = made.result
    if as_json:
        compared = () if result is None else result.comparisons
        document: dict[str, Json] = {
            "page": None if place is None else str(place),
            "url": url,
            "nbytes": made.page.nbytes,
            "bench": None if result is None else result.bench,
            "status": None if result is None else result.status.value,
            "error": None if result is None else error_document(result.completion.error),
            "place": None if result is None else place_document(result.place),
            "sim_ns": None if result is None else result.sim_ns,
            "verification": None if result is None else verification_document(compared, result.skipped_comparisons),
            "data": None if result is None else asdict(result.data),
        }
        print_json(document)
        return
    rows = [] if place is None else [("file", str(place))]
    rows += [] if url is None else [("address", url)]
    rows.append(("size", format_size(made.page.nbytes)))
    if result is not None:
        rows += [("bench", result.bench), ("status", result.status.value), ("simulated", format_ns(result.sim_ns))]
        rows += [("compared", str(each)) for each in result.comparisons]
        rows.append(("values", str(result.data)))
    show(stdout(), facts("Page", rows))


def _serve_file(path: Path, port: int | None) -> int:
    if port is None:
        raise InputError(f"{path}: open it in a browser, or give --port N to serve it")
    source: PageSource = FileSource(path)
    server = PageServer(Shelf(), port)
    watcher = Watcher(source, server)
    server.shelf.put(source.content())
    show(stdout(), facts("Page", [("file", str(path)), ("address", server.url)]))
    _serve(watcher)
    return 0


def _serve(watcher: Watcher) -> None:
    say(f"serving {watcher.server.url} until Ctrl-C")
    serve(watcher, say)
