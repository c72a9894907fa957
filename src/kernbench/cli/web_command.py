"""``kernbench web``."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from kernbench.cli.console import facts, print_json, say, show, show_progress, stdout
from kernbench.cli.failures import report_program_error
from kernbench.cli.options import ProgramCommand, options_of, output_options, refuse_arguments, verbose_option
from kernbench.cli.session import INTERRUPTED, Session
from kernbench.common.errors import InputError
from kernbench.common.files import writable
from kernbench.common.units import format_ns, format_size
from kernbench.library.pages import MadePage, PageRequest
from kernbench.library.runs import Run
from kernbench.runtime_api.run_request import RunRequest
from kernbench.web.page import FileSource
from kernbench.web.server import PageServer, Shelf, Watcher, serve

DEFAULT_OUT = "report.html"


@click.command(name="web", cls=ProgramCommand)
@click.argument("positional", nargs=-1, metavar="[PAGE.html | -- ARGUMENTS]")
@options_of("web")
@click.option(
    "--out", metavar="FILE.html", help=f"Write the page to this file.  [default: {DEFAULT_OUT}, without --port]"
)
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="Serve the page on port N, or on a free port if N is 0."
)
@verbose_option
@output_options
@click.pass_obj
def command(
    session: Session, request: RunRequest, positional: tuple[str, ...], out: str | None, port: int | None, as_json: bool
) -> int:
    """Write the machine and a run on it as a page for the browser: one self-contained file.

    Without --bench and --script, the page shows the machine alone. With --port, the page is served to this computer. It
    reloads when the topology or the program's file changes. With PAGE.html and --port, an existing page is served and
    reloads when the file changes.
    """
    if len(positional) == 1 and not request.program.args:
        page = positional[0]
        if request != RunRequest() or out is not None:
            raise InputError(
                f"{page}: without --out, this argument is an existing page, which --port N serves unchanged; "
                f"to write a new one, give --out {page}"
            )
        return _serve_file(Path(page), port, as_json=as_json)
    refuse_arguments(request, positional)
    source = PageRequest(request)
    place = None if out is None and port is not None else writable(DEFAULT_OUT if out is None else out)
    # Fail on an occupied port before a long run.
    server = None if port is None else PageServer(Shelf(), port)
    watcher = None if server is None else Watcher(source, server)
    result = _make(source)
    if place is not None:
        result.page.write(place)
        say(f"wrote {place}, and {place.name}.config.yaml with its machine")
    exit_code = 0 if result.run is None else result.run.exit_code
    served = None if exit_code == INTERRUPTED else watcher
    _print(result, place, None if served is None else served.server.url, as_json=as_json)
    if result.run is not None and exit_code:
        _report(result.run, place, session)
    if served is not None:
        served.server.shelf.put(result.page.content)
        _serve(served)
    return exit_code


def _make(source: PageRequest) -> MadePage:
    try:
        return source.make(show_progress())
    except KeyboardInterrupt:
        say("interrupted before a page was written")
        raise


def _print(result: MadePage, place: Path | None, url: str | None, *, as_json: bool) -> None:
    """Print the name and a summary of the page."""
    run = result.run
    if as_json:
        print_json({"page": None if place is None else str(place), "url": url, **result.to_dict()})
        return
    rows = [] if place is None else [("file", str(place))]
    rows += [] if url is None else [("address", url)]
    rows.append(("size", format_size(result.page.nbytes)))
    if run is not None:
        rows = [("verdict", run.verdict.sentence), *rows]
        rows += [("bench", run.bench), ("status", run.status), ("simulated", format_ns(run.latency_ns))]
        rows += [("loading", str(run.load).removeprefix("loading: "))] if run.load is not None and run.load.ns else []
        rows += [("compared", str(check)) for check in run.checks]
        rows.append(("values", str(run.data)))
        lines = () if run.compiled is None else run.compiled.lines()
        rows += [(name, text) for name, _, text in (line.partition(": ") for line in lines)]
    show(stdout(), facts("Page", rows))


def _report(run: Run, place: Path | None, session: Session) -> None:
    """Print the error of the run."""
    if run.exit_code == INTERRUPTED:
        page = "without --out, no page is written" if place is None else "the page shows the run until then"
        say(f"interrupted: {page}")
        return
    raised = None if run.live is None or run.live.result is None else run.live.result.error
    if raised is not None:
        report_program_error(raised, session)
    elif run.status == "NO_REQUESTS":
        say(f"error: bench {run.bench!r} submitted no request, so nothing was simulated")
    else:
        say(f"error: bench {run.bench!r}: {run.status if run.error is None else run.error.text}")


def _serve_file(path: Path, port: int | None, *, as_json: bool) -> int:
    if port is None:
        raise InputError(
            f"{path}: open it in a browser, or serve it with --port N; to write a new one, give --out {path}"
        )
    server = PageServer(Shelf(), port)
    watcher = Watcher(FileSource(path), server)
    server.shelf.put(watcher.source.content())
    if as_json:
        print_json({"page": str(path), "url": server.url})
    else:
        show(stdout(), facts("Page", [("file", str(path)), ("address", server.url)]))
    _serve(watcher)
    return 0


def _serve(watcher: Watcher) -> None:
    say(f"serving {watcher.server.url} until Ctrl-C")
    serve(watcher, say)
