"""Serving a page, and making it anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from kernbench.common.errors import InputError
from kernbench.library.pages import PageRequest
from kernbench.runtime_api.run_request import RunRequest
from kernbench.web.page import MARK, FileSource
from kernbench.web.server import PageServer, Shelf, Watcher


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer(Shelf(), 0) as made:
        Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def get(server: PageServer, path: str = "") -> str:
    with urlopen(server.url + path) as answer:
        return str(answer.read().decode())


def test_the_page_is_served_with_its_version(server: PageServer) -> None:
    server.shelf.put(f"<head>{MARK}</head>")
    version = json.loads(get(server, "version"))["version"]
    assert version
    assert f'content="{version}"' in get(server)


def test_another_page_has_another_version(server: PageServer) -> None:
    server.shelf.put("one")
    before = get(server, "version")
    server.shelf.put("two")
    assert get(server, "version") != before


def test_a_complaint_keeps_the_page(server: PageServer) -> None:
    server.shelf.put("one")
    server.shelf.complain("no such bench")
    assert (get(server), json.loads(get(server, "version"))["message"]) == ("one", "no such bench")


def test_nothing_else_is_served(server: PageServer) -> None:
    with pytest.raises(HTTPError, match="404"):
        get(server, "../pyproject.toml")


def ask(server: PageServer, *hosts: str, method: str = "GET", path: str = "/") -> HTTPResponse:
    """The answer to a request with these ``Host`` headers."""
    connection = HTTPConnection(*server.server_address[:2])
    connection.putrequest(method, path, skip_host=True)
    for host in hosts:
        connection.putheader("Host", host.format(port=server.port))
    connection.endheaders()
    return connection.getresponse()


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LocalHost:{port}", "[::1]:{port}"])
@pytest.mark.parametrize("path", ["/", "/version", "/?x=%E0%A4%A"])
def test_it_answers_to_the_names_of_this_computer(server: PageServer, host: str, path: str) -> None:
    server.shelf.put("one")
    assert ask(server, host, path=path).status == 200


@pytest.mark.parametrize(
    "hosts",
    [
        (),
        ("",),
        ("evil.example:{port}",),
        ("evil.example",),
        ("localhost",),
        ("localhost:1",),
        ("127.0.0.1.evil.example:{port}",),
        ("localhost.evil.example:{port}",),
        ("evil.example:{port}", "localhost:{port}"),
        ("localhost:{port}", "localhost:{port}"),
        ("0.0.0.0:{port}",),
        ("user@localhost:{port}",),
    ],
)
@pytest.mark.parametrize("path", ["/", "/version", "/nothing"])
def test_it_answers_to_no_other_name(server: PageServer, hosts: tuple[str, ...], path: str) -> None:
    """A page of somebody else could have its own name lead to this computer, and read what is served."""
    server.shelf.put("secret")
    answer = ask(server, *hosts, path=path)
    assert answer.status == 421
    assert b"secret" not in answer.read()


def test_the_name_without_a_port_is_that_of_port_80(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageServer, "port", 80)
    assert "localhost" in server.names
    assert "evil.example" not in server.names


def test_what_is_asked_with_head_has_no_content(server: PageServer) -> None:
    server.shelf.put("page")
    answer = ask(server, "localhost:{port}", method="HEAD")
    assert (answer.status, answer.getheader("Content-Length"), answer.read()) == (200, "4", b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_sent_to_it(server: PageServer, method: str) -> None:
    server.shelf.put("page")
    answer = ask(server, "localhost:{port}", method=method)
    assert (answer.status, answer.getheader("Allow"), answer.read()) == (405, "GET, HEAD", b"")


def test_a_port_that_is_taken_is_bad_input(server: PageServer) -> None:
    with pytest.raises(InputError, match="--port"):
        PageServer(Shelf(), server.server_address[1])


def test_a_file_that_changes_is_served_anew(server: PageServer, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(f"{MARK}one</html>")
    watcher = Watcher(FileSource(file), server)
    assert watcher.look() is None
    file.write_text(f"{MARK}another</html>\n")
    assert watcher.look() == ""
    assert "another" in get(server)


@pytest.mark.parametrize("content", ["", "<html></html>", f"<html>{MARK} and then the disk was full"])
def test_what_is_no_whole_page_is_not_served(server: PageServer, tmp_path: Path, content: str) -> None:
    file = tmp_path / "page.html"
    file.write_text(f"{MARK}one</html>")
    watcher = Watcher(FileSource(file), server)
    server.shelf.put(watcher.source.content())
    file.write_text(content)
    assert "not a complete page" in str(watcher.look())
    assert "one" in get(server)


def test_what_cannot_be_made_is_told(server: PageServer, tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text("{}")
    watcher = Watcher(PageRequest(RunRequest.of(topology=str(file))), server)
    file.write_text("nonsense: 1")
    told = watcher.look()
    assert told
    assert "nonsense" in told
    assert json.loads(server.shelf.news)["message"] == told


@pytest.mark.parametrize(
    ("bench", "files"),
    [
        (None, ["m.yaml"]),
        ("gemm-single-pe", ["m.yaml"]),
        ("a/b.py:go", ["m.yaml", "a/b.py"]),
        ("b.py", ["m.yaml", "b.py"]),
    ],
)
def test_a_run_depends_on_its_files(bench: str | None, files: list[str]) -> None:
    assert [path.as_posix() for path in PageRequest(RunRequest.of(bench=bench, topology="m.yaml")).files] == files


def test_a_run_depends_on_how_its_collectives_work() -> None:
    request = RunRequest.of(bench="ccl-allreduce", topology="m.yaml", ccl="mine/ccl.yaml")
    assert Path("mine/ccl.yaml") in PageRequest(request).files
