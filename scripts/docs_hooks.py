"""Hooks of ``make docs``: pages that are made of other files, and links that leave docs/ on purpose.

The start page is the README; contributing and changes are the files at the root; decisions have a table; the page of
the library lists what ``kernbench`` re-exports. A link to a file outside docs/ leads to a copy of it in the site, under
``source/``. One to a folder outside becomes plain text. A link to nothing is left as it is, and ends the build.
"""

from __future__ import annotations

import ast
import os.path
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = "docs"
AT_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files at the root that are pages of the site, by name"""
LIBRARY = "reference/library.md"
DECISIONS = PurePosixPath(DOCS, "decisions")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of other files."""
    for name, page in AT_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    files.append(File.generated(config, "decisions/index.md", content="\n".join(_tabulate_decisions())))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with its links as they are in the site."""
    here = page.file.src_uri
    if here == LIBRARY and (names := list(_list_reexports())):
        markdown = markdown.replace(
            "::: kernbench\n", f"::: kernbench\n    options: {{ members: [{', '.join(names)}] }}\n"
        )
    folder = PurePosixPath() if here in AT_ROOT.values() else PurePosixPath(DOCS, here).parent

    def link_in_site(found: re.Match[str]) -> str:
        picture, text, target, anchor = found.groups(default="")
        path = os.path.normpath(folder / target)
        if not (ROOT / path).exists():
            return found[0]
        place = _place_in_site(PurePosixPath(path))
        if place is None:
            return text
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
        return f"{picture}[{text}]({os.path.relpath(place, PurePosixPath(here).parent)}{anchor})"

    return LINK.sub(link_in_site, markdown)


def _list_reexports() -> Iterator[str]:
    """Yield the names that ``kernbench`` binds to what is in its library; errors have a page of their own."""
    tree = ast.parse((ROOT / "src" / "kernbench" / "__init__.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kernbench.library"):
            yield from (each.asname or each.name for each in node.names)


def _place_in_site(path: PurePosixPath) -> str | None:
    """Return where a file of the project is in the site; None for a folder that has no page."""
    if path == DECISIONS:
        return "decisions/index.md"
    if (ROOT / path).is_dir():
        return None
    inside = path.parts[0] == DOCS
    return str(path.relative_to(DOCS)) if inside else AT_ROOT.get(str(path), f"source/{path}")


def _tabulate_decisions() -> Iterator[str]:
    """Yield a page with a row for each decision record: its title in both languages, and its status."""
    yield "# Decisions\n\nRecords of choices between ways, and what they cost. Each is in English and in Korean.\n"
    yield "| | decision | 결정 | status |\n| --- | --- | --- | --- |"
    for record in sorted((ROOT / DECISIONS).glob("*.md")):
        korean = record.parent / "ko" / record.name
        lines = record.read_text(encoding="utf-8").splitlines()
        title, title_korean = lines[0].lstrip("# "), korean.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        status = lines[2].removeprefix("Status: ")
        yield f"| {record.name[:4]} | [{title}]({record.name}) | [{title_korean}](ko/{record.name}) | {status} |"
