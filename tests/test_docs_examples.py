"""Tests that the examples of the documentation run, and show what the page says that they show.

The blocks of a page run in order, in one folder that has the project's examples and default files. Python blocks share
a namespace; a comment behind an expression is what the expression shows. In a console block the first line behind a
command has to be the first line that the command prints, or the first line of its error. All lines have to be among
those that it prints, in this order. ``…`` stands for any text, alone on a line for any lines. The bars of a chart may
be left out. A comment in HTML before a block says what else it needs:

- ``<!-- file: NAME -->`` writes the block to a file; ``<!-- continues a file: NAME -->`` appends to it;
- ``<!-- needs: torch -->`` skips the page where the module is not installed;
- ``<!-- exits: 1 -->`` is the exit code of the block's last command;
- ``<!-- not run: REASON -->`` leaves the block out; ``<!-- slow -->`` leaves it out of a quick run.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kernbench.result import sections

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"<!-- ([a-z ]+?)(?:: (.*?))? -->")
LANGUAGES = {"python", "console", "yaml", "text", "json", "toml", "mermaid"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the directives in front of it."""

    page: Path
    line: int
    language: str
    text: str
    directives: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        before = text[: match.start()].rstrip()
        last_lines = re.search(r"((?:<!-- [^\n]* -->\s*)*)\Z", before)
        directives = dict(DIRECTIVE.findall(last_lines[1])) if last_lines else {}
        indent = len(match[1])
        body = "".join(line[indent:] if line.strip() else line for line in match[3].splitlines(keepends=True))
        yield Block(page, text.count("\n", 0, match.start()) + 1, match[2], body, directives)


def is_shown(shown: str, output: str) -> bool:
    """Tell whether an output is what the page shows, in which ``…`` stands for any text."""
    words = " ".join(shown.split())
    pattern = ".*?".join(re.escape(piece) for piece in words.split("…"))
    return re.fullmatch(pattern, " ".join(output.split())) is not None


def run_python(block: Block, namespace: dict[str, Any]) -> None:
    """Execute a block a statement at a time; compare what each shows with the comment behind it."""
    lines = block.text.splitlines()
    for statement in ast.parse(block.text).body:
        printed = io.StringIO()
        is_expression = isinstance(statement, ast.Expr)
        tree: Any = ast.Expression(statement.value) if is_expression else ast.Module([statement], [])
        code = compile(tree, str(block), "eval" if is_expression else "exec")
        with contextlib.redirect_stdout(printed):
            result = eval(code, namespace)
        last_line = lines[(statement.end_lineno or 1) - 1]
        comment = re.match(r"\s+# (.*)", last_line[statement.end_col_offset or 0 :])
        if is_expression and comment:
            output = printed.getvalue() if result is None else repr(result)
            assert is_shown(comment[1], output), f"{block}: shows {output!r}; the page has {comment[1]!r}"


def commands_of(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Yield each command with the lines of its output that the page shows."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        end = next(index for index, line in enumerate(lines) if not line.endswith("\\"))
        yield "\n".join(lines[: end + 1]), [line for line in lines[end + 1 :] if line.strip()]


def missing_line(shown: list[str], streams: list[list[str]]) -> str | None:
    """Return the first shown line that is in no stream behind the lines shown before it; None if all are there."""
    rest = [list(lines) for lines in streams]
    for line in shown:
        if not line.strip(" …─"):
            continue
        for lines in rest:
            places = [i for i, printed in enumerate(lines) if is_shown(line, printed) or is_shown(f"{line} …", printed)]
            if places:
                del lines[: places[0] + 1]
                break
        else:
            return line
    return None


def run_console(block: Block, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    commands = list(commands_of(block))
    assert commands, f"{block}: a console block has commands behind '$ '"
    for index, (command, shown) in enumerate(commands):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env={**os.environ, "PATH": path, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
        code = int(block.directives.get("exits", "0")) if index == len(commands) - 1 else 0
        assert done.returncode == code, f"{block}: {command} ended with {done.returncode}: {done.stderr[-2000:]}"
        streams = [[line for line in text.splitlines() if line.strip()] for text in (done.stdout, done.stderr)]
        first_line = next((line for lines in streams for line in lines), "")
        assert not shown or is_shown(shown[0], first_line), (
            f"{block}: {command} shows {first_line!r}; the page {shown[0]!r}"
        )
        missing = missing_line(shown, streams)
        assert missing is None, f"{block}: {command} does not show {missing!r} there"


def run_page(page: Path, folder: Path, *, quick: bool = False) -> None:
    """Run the blocks of a page in a folder; ``quick`` leaves out those that are slow."""
    namespace: dict[str, Any] = {"__name__": "example"}
    for block in blocks_of(page):
        directives = block.directives
        if "not run" in directives or (quick and "slow" in directives):
            continue
        name = directives.get("file") or directives.get("continues a file")
        if name:
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            before = file.read_text(encoding="utf-8") if "continues a file" in directives else ""
            file.write_text(before + block.text, encoding="utf-8")
        elif block.language == "python":
            run_python(block, namespace)
        elif block.language == "console":
            run_console(block, folder)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples and the default files of the project, in which a page runs."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for name in ("topology.yaml", "ccl.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sections, "_ADDED", {})  # a page may add a section to all runs
    return tmp_path


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_have_a_language(page: Path) -> None:
    assert not [f"{block}: {block.language!r}" for block in blocks_of(page) if block.language not in LANGUAGES]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_of_a_page_run(page: Path, folder: Path) -> None:
    for block in blocks_of(page):
        module = block.directives.get("needs")
        if module and importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    run_page(page, folder)


def test_a_wrong_example_is_found(folder: Path) -> None:
    page = ROOT / "page.md"
    good = Block(page, 1, "python", "x = 1\nx + 1  # 2\nprint('a', x)  # a …\n")
    run_python(good, {})
    with pytest.raises(AssertionError, match="shows '2'; the page has '3'"):
        run_python(Block(page, 1, "python", "1 + 1  # 3"), {})
    run_console(Block(page, 1, "console", "$ echo one two\none …\n$ exit 2\n", {"exits": "2"}), folder)
    with pytest.raises(AssertionError, match="ended with 1"):
        run_console(Block(page, 1, "console", "$ false\n"), folder)
    with pytest.raises(AssertionError, match="shows 'b'; the page 'c'"):
        run_console(Block(page, 1, "console", "$ echo b\nc\n"), folder)
    run_console(Block(page, 1, "console", "$ printf 'a\\nb\\nc 3 ██'\na\n…\nc 3\n"), folder)
    with pytest.raises(AssertionError, match="does not show 'c 4' there"):
        run_console(Block(page, 1, "console", "$ printf 'a\\nb\\nc 3'\na\n…\nc 4\n"), folder)


def test_blocks_and_their_directives_are_read(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(
        "<!-- file: k.py -->\n<!-- slow -->\n```python\nx\n```\n\n- item\n  ```console\n  $ ls\n  a\n  ```\n"
    )
    first, second = blocks_of(page)
    assert first.directives == {"file": "k.py", "slow": ""}
    assert (first.language, first.text, second.language) == ("python", "x\n", "console")
    assert list(commands_of(second)) == [("ls", ["a"])]
