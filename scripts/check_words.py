"""Check the words of the project: names, docstrings and documentation, against limits that only fall.

usage: python scripts/check_words.py             compare the project with LIMITS, and list the worst ten files
       python scripts/check_words.py PATH ...    list every finding in these files and folders, with its line

A figure above its limit fails. So does one that is far below it: the limit is then lowered in LIMITS.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

VAGUE = frozenset(
    "each found made given there told seen asked lies known mine what own others some whole taken".split()  # noqa: SIM905
)
"""Names that say nothing about what a variable holds"""

CLAUSE = re.compile(r"(What|Who|Whom|Whether|Which|Those|That|Where|How|When|As|Of|By|All|Beyond|Behind|So)\b(?!-)")
"""Words that begin a clause, in place of the verb or the noun of a docstring"""

OLD_WORDS = {
    r"told|tells of|is told": "reported, notified",
    r"nobody|somebody": "no component, the requester",
    r"what binds|what it binds|binds": "bottleneck, limiting resource",
    r"holds? (?:it |them |others )?up|held up": "delays, on the critical path",
    r"goes on|went on|go on": "proceeds, continues",
    r"gives? way|gave way": "yields",
    r"puts? off|putting off": "deferred",
    r"under way": "in flight",
    r"hands? round|handed round": "all-gather",
    r"rehears\w+": "dry run",
    r"timetables?": "precomputed schedule",
    r"takes? turns|in turns": "round-robin",
    r"meets? nobody": "uncontended",
    r"one's own|as it were": "the noun",
    r"is kept|are kept|kept in": "cached, retained, stored",
    r"lies in|lies at|lies on|lie in|lie at|lie on": "is stored in, at, on",
}
"""Everyday words of earlier texts, as patterns, with the field's words"""
OLD = re.compile(r"(?<![\w-])(?:" + "|".join(OLD_WORDS) + r")(?![\w-])", re.IGNORECASE)

LONG_SENTENCE = 25
"""Words from which on a sentence counts as long"""
LONG_LINE = 100
"""Columns of a line of Markdown; tables, links and code may be longer"""


@dataclass(frozen=True, slots=True)
class Limit:
    """An upper bound of a figure, and the slack below the bound beyond which the bound must be lowered."""

    figure: str
    most: float
    slack: float


LIMITS = (
    Limit("vague names, %", 0.2, 0.3),
    Limit("vague parameters of public functions", 0, 0),
    Limit("docstrings that begin with a clause", 0, 0),
    Limit("old words in 1,000 words", 0.1, 0.1),
    Limit("long sentences, %", 0.6, 0.3),
    Limit("words of a sentence in docs, mean", 13.0, 3.0),
    Limit("lines of Markdown over 100 columns", 0, 0),
    Limit("words of the pages in docs", 69_000, 1_500),
)
ROOM_LIMIT = 1.5
"""Vague names, in percent, of a room whose names have been renewed"""
RENEWED_ROOMS = tuple(
    "ccl common components core di dtensor engine frontends kernels messages numerics observe policy probe "  # noqa: SIM905
    "runtime_api topology tp transport triton_emu web".split()
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A place that a reader stumbles at."""

    figure: str
    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.figure}: {self.text}"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose: a docstring, or a paragraph of a page."""

    path: Path
    line: int
    prose: str

    @property
    def sentences(self) -> list[str]:
        """The sentences, without code: a span of code is a word."""
        prose = re.sub(r"\]\([^)]*\)", "]", re.sub(r"``[^`]+``|`[^`]+`", "`code`", self.prose))
        return [part for part in re.split(r"(?<=[.!?])\s+(?=[^a-z])", " ".join(prose.split())) if part]


# -- Names ------------------------------------------------------------------------------------------------------------


def list_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each variable that is bound and each parameter, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg) and node.arg not in {"self", "cls"}:
            yield node.arg, node.lineno


def list_public_parameters(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the parameters of functions and methods whose names have no underscore in front, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            arguments = node.args
            for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
                yield argument.arg, argument.lineno


# -- Prose ------------------------------------------------------------------------------------------------------------


def list_docstrings(path: Path, tree: ast.AST) -> Iterator[Text]:
    """Yield each docstring; its paragraphs and list items end sentences."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and ast.get_docstring(node):
                yield Text(path, first.lineno, ast.get_docstring(node) or "")


def list_paragraphs(path: Path) -> Iterator[Text]:
    """Yield the paragraphs and list items of a page in Markdown, without code, tables and headings."""
    paragraph: list[str] = []
    first_line = 1
    is_code = False
    for line, text in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], start=1):
        is_fence = text.lstrip().startswith("```")
        is_code ^= is_fence
        starts_item = re.match(r"\s*([-*]|\d+\.) ", text) is not None
        is_prose = bool(text.strip()) and not is_code and not is_fence and not re.match(r"\s*[|#<!]", text)
        if (starts_item or not is_prose) and paragraph:
            yield Text(path, first_line, " ".join(paragraph))
            paragraph = []
        if is_prose:
            if not paragraph:
                first_line = line
            paragraph.append(text.strip())


def list_wide_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page that are too wide, but for tables, code and the targets of links."""
    is_code = False
    for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        is_code ^= text.lstrip().startswith("```")
        bare = re.sub(r"`[^`]{20,}`", "`code`", re.sub(r"\]\([^)]*\)", "]", text))
        if len(bare) > LONG_LINE and not is_code and not re.match(r"\s*[|<]", text):
            yield line, text


def split_parts(text: Text) -> Iterator[Text]:
    """Yield the paragraphs and list items of a docstring, each of which ends a sentence."""
    for part in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text.prose):
        if part.strip() and not part.lstrip().startswith((">>>", "|", "    ")):
            yield Text(text.path, text.line, part)


# -- Measuring --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Survey:
    """Findings in a list of files, and the totals that turn them into shares."""

    findings: list[Finding]
    names: Counter[str]
    """Variables and parameters, by room"""
    words: int = 0
    sentences: int = 0
    docs_words: int = 0
    docs_sentences: int = 0
    docs_sentence_words: int = 0

    def count(self, figure: str) -> int:
        return sum(finding.figure == figure for finding in self.findings)

    @property
    def figures(self) -> dict[str, float]:
        """The figures that LIMITS bounds, by their names there."""
        names = sum(self.names.values())
        return {
            "vague names, %": 100 * self.count("vague name") / max(1, names),
            "vague parameters of public functions": self.count("vague parameter"),
            "docstrings that begin with a clause": self.count("clause first"),
            "old words in 1,000 words": 1000 * self.count("old word") / max(1, self.words),
            "long sentences, %": 100 * self.count("long sentence") / max(1, self.sentences),
            "words of a sentence in docs, mean": self.docs_sentence_words / max(1, self.docs_sentences),
            "lines of Markdown over 100 columns": self.count("wide line"),
            "words of the pages in docs": self.docs_words,
        }

    def room_shares(self) -> dict[str, float]:
        """Return the share of vague names of each room, in percent."""
        vague = Counter(room_of(finding.path) for finding in self.findings if finding.figure == "vague name")
        return {room: 100 * vague[room] / count for room, count in self.names.items()}


def room_of(path: Path) -> str:
    """Return the folder below ``src/kernbench`` that a file belongs to."""
    parts = path.parts
    if "kernbench" not in parts[:-1]:
        return ""
    below = parts[parts.index("kernbench", parts.index("src") if "src" in parts else 0) + 1 : -1]
    return below[0] if below else ""


def survey_files(paths: list[Path]) -> Survey:
    """Return the findings in Python files and pages of Markdown."""
    survey = Survey([], Counter())
    for path in paths:
        if path.suffix == ".py":
            _survey_code(survey, path)
        else:
            _survey_page(survey, path)
    return survey


def _survey_code(survey: Survey, path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for name, line in list_names(tree):
        survey.names[room_of(path)] += 1
        if name in VAGUE:
            survey.findings.append(Finding("vague name", path, line, name))
    for name, line in list_public_parameters(tree):
        if name in VAGUE:
            survey.findings.append(Finding("vague parameter", path, line, name))
    for text in list_docstrings(path, tree):
        if CLAUSE.match(text.prose):
            survey.findings.append(Finding("clause first", path, text.line, text.prose.splitlines()[0]))
        for part in split_parts(text):
            _survey_prose(survey, part)


def _survey_page(survey: Survey, path: Path) -> None:
    if path.name != "README.md" and path.parent.name != "reference":
        survey.docs_words += len(path.read_text(encoding="utf-8").split())
    for line, wide in list_wide_lines(path):
        survey.findings.append(Finding("wide line", path, line, wide))
    for text in list_paragraphs(path):
        _survey_prose(survey, text)
        survey.docs_sentences += len(text.sentences)
        survey.docs_sentence_words += sum(len(sentence.split()) for sentence in text.sentences)


def _survey_prose(survey: Survey, text: Text) -> None:
    for sentence in text.sentences:
        count = len(sentence.split())
        survey.words += count
        survey.sentences += 1
        if count > LONG_SENTENCE:
            survey.findings.append(Finding("long sentence", text.path, text.line, sentence))
        for match in OLD.finditer(sentence):
            survey.findings.append(Finding("old word", text.path, text.line, f"{match[0]!r} in {sentence}"))


# -- The command ------------------------------------------------------------------------------------------------------


def list_files(root: Path) -> list[Path]:
    """Return what readers of the project read: its modules, its pages and the README; decisions are records."""
    docs = root / "docs"
    pages = [root / "README.md", *docs.glob("*.md"), *(docs / "reference").glob("*.md")]
    return [*sorted((root / "src").rglob("*.py")), *sorted(page for page in pages if page.exists())]


def find_problems(survey: Survey, limits: tuple[Limit, ...] = LIMITS) -> Iterator[str]:
    """Yield a line for each figure that is above its limit, and for each limit that can be lowered."""
    figures = survey.figures
    for limit in limits:
        value = round(figures[limit.figure], 1)
        if value > limit.most:
            yield f"{limit.figure}: {value:,} is above the limit of {limit.most:,}; with a path this lists the lines"
        elif value < limit.most - limit.slack:
            yield f"{limit.figure}: {value:,} is below the limit of {limit.most:,}: lower it in {Path(__file__).name}"
    shares = survey.room_shares()
    for room in RENEWED_ROOMS:
        if shares.get(room, 0) > ROOM_LIMIT:
            yield f"vague names of {room}: {shares[room]:.1f} % is above the limit of {ROOM_LIMIT} %"


def _print_worst(survey: Survey) -> None:
    worst = Counter(finding.path for finding in survey.findings).most_common(10)
    print("worst files: " + ", ".join(f"{path.relative_to(ROOT)} {count}" for path, count in worst))


def main(arguments: list[str]) -> int:
    """List the findings of paths, or compare the project with the limits; return 1 where one is exceeded."""
    if arguments:
        paths = [Path(argument) for argument in arguments]
        for path in paths:
            if not path.exists():
                print(f"error: {path}: no such file or folder", file=sys.stderr)
                return 2
        files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
        survey = survey_files([file for file in files if file.suffix in {".py", ".md"}])
        for finding in survey.findings:
            print(finding)
    else:
        survey = survey_files(list_files(ROOT))
    for figure, value in survey.figures.items():
        print(f"{figure}: {value:,.1f}")
    if arguments:
        return 0
    _print_worst(survey)
    problems = list(find_problems(survey))
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
