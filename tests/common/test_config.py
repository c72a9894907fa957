"""YAML with positions: what is read, what is refused, and where the refusal points."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BeforeValidator, Field

from kernbench.common import config as cf
from kernbench.common.errors import ConfigError
from kernbench.common.units import parse_size


class Inner(cf.ConfigModel):
    bw_gbs: float = Field(gt=0)
    fifo: Literal["bounded", "unbounded"] = "bounded"


class Several(cf.ConfigModel):
    pairs: tuple[tuple[int, int], ...] = Field(min_length=1)


class Outer(cf.ConfigModel):
    name: str
    count: int = Field(ge=1)
    express: bool = True
    size: Annotated[int, BeforeValidator(parse_size)] = 0
    links: dict[str, Inner] = Field(default={})
    items: tuple[int, ...] = ()
    inner: Inner | None = None
    either: int | str = 0


GOOD = """\
name: a
count: 2
links:
  x: { bw_gbs: 1 }
items: [1, 2,
        3]
"""


def problems(text: str, *overrides: str) -> list[str]:
    try:
        cf.validate(cf.apply_overrides(cf.parse_document(text, "f.yaml"), overrides), Outer)
    except ConfigError as error:
        return str(error).split("\n")
    return []


def test_a_good_file_becomes_a_frozen_model() -> None:
    model = cf.validate(cf.parse_document(GOOD, "f.yaml"), Outer)
    assert model.items == (1, 2, 3)
    assert model.links["x"].bw_gbs == 1.0
    with pytest.raises(ValueError):
        model.count = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("[[1]]", ["f.yaml:1:9: pairs[0]: missing key 1"]),
        ("[]", ["f.yaml:1:8: pairs: found [], must have at least 1 entry"]),
    ],
)
def test_entries_that_are_wrong_are_not_too_few(given: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        cf.validate(cf.parse_document(f"pairs: {given}", "f.yaml"), Several)
    assert str(error.value).split("\n") == said


def test_every_entry_has_its_place() -> None:
    marks = cf.parse_document(GOOD, "f.yaml").marks
    assert marks["links", "x", "bw_gbs"].key == (4, 8)
    assert marks["links", "x", "bw_gbs"].value == (4, 16)
    assert marks["items", 2].value == (6, 9)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("count: 2", "count: 0"), "f.yaml:2:8: count: found 0, must be at least 1"),
        (("count: 2", "count: true"), "f.yaml:2:8: count: found true, must be a whole number"),
        (("count: 2", "count: '2'"), "f.yaml:2:8: count: found '2', must be a whole number"),
        (("count: 2", "count: 2.5"), "f.yaml:2:8: count: found 2.5, must be a whole number"),
        (("bw_gbs: 1", "bw_gbs: -5"), "f.yaml:4:16: links.x.bw_gbs: found -5, must be greater than 0"),
        (("bw_gbs: 1", "bw_gbs: 5GB/s"), "f.yaml:4:16: links.x.bw_gbs: found '5GB/s', must be a plain number, in GB/s"),
        (("bw_gbs: 1", "bw_gbs: .nan"), "f.yaml:4:16: links.x.bw_gbs: found nan, must be a finite number"),
        (("bw_gbs: 1", ""), "f.yaml:4:3: links.x: missing key 'bw_gbs'"),
        (("name: a\n", ""), "f.yaml:1:1: missing key 'name'"),
        (("name: a", "name: [a]"), "f.yaml:1:7: name: found ['a'], must be text"),
        (("items: [1, 2,", "items: [1, x,"), "f.yaml:5:12: items[1]: found 'x', must be a whole number"),
        (("{ bw_gbs: 1 }", "5"), "f.yaml:4:6: links.x: found 5, must be a mapping of keys"),
        (
            ("bw_gbs: 1", "bw_gbs: 1, fifo: unbound"),
            "f.yaml:4:25: links.x.fifo: found 'unbound', did you mean 'unbounded'? must be one of: bounded, unbounded",
        ),
        (
            ("bw_gbs: 1", "bw_gbs: 1, fifos: bounded"),
            "f.yaml:4:19: links.x.fifos: unknown key 'fifos'; did you mean 'fifo'? allowed here: bw_gbs, fifo",
        ),
        (("count: 2", "count: 2\ncount: 3"), "f.yaml:3:1: count: duplicate key 'count'; line 2 gives it already"),
        (("count: 2", "count: 2\nsize: 3 parsecs"), "f.yaml:3:7: size: '3 parsecs' is not a size; write bytes or a"),
    ],
)
def test_a_slip_is_reported_where_it_stands(change: tuple[str, str], expected: str) -> None:
    found = problems(GOOD.replace(*change))
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_all_slips_are_reported_in_file_order() -> None:
    broken = GOOD.replace("name: a", "nam: a\nnam: b").replace("bw_gbs: 1", "bw_gbs: 0").replace("count: 2", "count: x")
    lines = [line.split(": ")[0] for line in problems(broken)]
    assert lines == ["f.yaml:1:1", "f.yaml:1:1", "f.yaml:2:1", "f.yaml:3:8", "f.yaml:5:16"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "f.yaml:1:1: the file is empty; a mapping of keys was expected"),
        ("# only a remark\n", "f.yaml:1:1: the file is empty; a mapping of keys was expected"),
        ("[1, 2]", "f.yaml:1:1: found [1, 2], must be a mapping of keys"),
        ("a: 1\nb: [1,\nc: 2", "f.yaml:4:1: not YAML: "),
        ("a: 1\n\tb: 2", "f.yaml:2:1: not YAML: "),
        ("a: 'open", "f.yaml:1:9: not YAML: "),
        ("a: \x07", "f.yaml:1:4: not YAML: a character that no text file has"),
        ("a: 1\n---\nb: 2", "f.yaml:2:1: not YAML: but found another document"),
        ("a: &x { b: *x }", "f.yaml:1:4: an alias that contains itself"),
    ],
)
def test_what_is_no_yaml_mapping_is_one_problem(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cf.parse_document(text, "f.yaml")
    assert len(caught.value.problems) == 1
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: !secret 1", "f.yaml:1:4: a: unknown tag !secret"),
        ("a: !!python/object:os.system {}", "f.yaml:1:4: a: unknown tag tag:yaml.org,2002:python/object:os.system"),
        ("? [a]\n: 1", "f.yaml:1:3: a key must be a name, not a list or a mapping"),
        ("a: 2024-13-45", "f.yaml:1:4: a: found '2024-13-45': month must be in 1..12"),
        ("<<: 1\na: 2", "f.yaml:1:5: << takes a mapping or a list of mappings"),
    ],
)
def test_yaml_that_means_nothing_here_is_a_problem(text: str, expected: str) -> None:
    assert expected in map(str, cf.parse_document(text, "f.yaml").problems)


def test_aliases_cannot_blow_up() -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 9)]
    text = "\n".join(["l0: &l0 [1]", *levels])
    with pytest.raises(ConfigError, match="entries once aliases are written out"):
        cf.parse_document(text, "f.yaml")


def test_nesting_without_end_is_a_problem() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        cf.parse_document("a: " + "[" * 5000 + "]" * 5000, "f.yaml")


@pytest.mark.parametrize("text", ["a: " + "[" * 300_000, "- " * 300_000, "{a: " * 300_000])
def test_brackets_without_end_are_a_problem_at_once(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f\.yaml:1:\d+: nested too deeply"):
        cf.parse_document(text, "f.yaml")


def test_more_values_than_a_configuration_has_are_a_problem_at_once() -> None:
    """A node of YAML is a kilobyte: 16 MB of text can be millions of them."""
    with pytest.raises(ConfigError, match=r"^f\.yaml:1:\d+: more than 200,000 keys and values$"):
        cf.parse_document("a: [" + "1," * 1_000_000 + "]", "f.yaml")


def test_anchors_and_merge_keys_work() -> None:
    text = "base: &b { bw_gbs: 1, fifo: unbounded }\nname: a\ncount: 1\nlinks: { x: { <<: *b, bw_gbs: 2 } }\n"
    data = cf.parse_document(text, "f.yaml").data
    assert data["links"]["x"] == {"bw_gbs": 2, "fifo": "unbounded"}


def test_an_exponent_makes_a_number() -> None:
    assert cf.parse_document("a: 1e3\nb: '1e3'", "f.yaml").data == {"a": 1000.0, "b": "1e3"}


def test_files_that_cannot_be_read_are_one_clear_line(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: \xe9\n")
    expected = {
        tmp_path / "absent.yaml": f"{tmp_path}/absent.yaml: no such file",
        tmp_path: f"{tmp_path}: cannot be read: Is a directory",
        latin: f"{latin}:2:4: not UTF-8 text: byte 0xe9",
    }
    for path, message in expected.items():
        with pytest.raises(ConfigError) as caught:
            cf.load_document(path)
        assert str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert cf.load_document(tmp_path / "f.yaml").data == {"a": 1}


def test_overrides_reach_any_depth_and_leave_the_original_alone() -> None:
    document = cf.parse_document(GOOD, "f.yaml")
    changed = cf.apply_overrides(
        document, ["count=7", "items[1]=9", "links.y={bw_gbs: 2}", "inner.bw_gbs=3", "name=b=c"]
    )
    model = cf.validate(changed, Outer)
    assert (model.count, model.items, model.links["y"].bw_gbs, model.name) == (7, (1, 9, 3), 2.0, "b=c")
    assert model.inner == Inner(bw_gbs=3)
    assert document.data["count"] == 2


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("count=0", "--set count=0: count: found 0, must be at least 1"),
        ("links.x.bw_gb=3", "--set links.x.bw_gb=3: links.x.bw_gb: unknown key 'bw_gb'; did you mean 'bw_gbs'?"),
        ("links={x: {}}", "--set links={x: {}}: links.x: missing key 'bw_gbs'"),
        ("nothing.here=1", "--set nothing.here=1: nothing: unknown key 'nothing'; allowed here: name,"),
        ("count", "--set count: no '='; write path=value"),
        ("=3", "--set =3: '' is not a path"),
        ("a..b=3", "--set a..b=3: 'a..b' is not a path"),
        ("items[9]=1", "--set items[9]=1: items has 3 entries: [0] to [2], not [9]"),
        ("items.x=1", "--set items.x=1: items is [1, 2, 3], which has no key 'x'"),
        ("count[0]=1", "--set count[0]=1: count is 2, not a list: it has no [0]"),
        ("items=[1", "--set items=[1: '[1' is not YAML: "),
    ],
)
def test_a_bad_override_is_reported_as_typed(override: str, expected: str) -> None:
    found = problems(GOOD, override)
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_every_bad_override_is_reported() -> None:
    assert len(problems(GOOD, "count", "items[9]=1", "=")) == 3


def test_a_union_is_reported_without_pydantic_labels() -> None:
    assert {line.split(": ")[1] for line in problems(GOOD + "either: [1]\n")} == {"either"}


names = st.text(alphabet="abcxyz_", min_size=1, max_size=6)
paths = st.lists(st.one_of(names, st.integers(0, 99)), min_size=1, max_size=6).filter(lambda p: isinstance(p[0], str))


@given(paths)
def test_a_path_survives_being_written(path: list[str | int]) -> None:
    assert cf.path_of(cf.path_text(tuple(path))) == tuple(path)


@given(st.text(max_size=60))
def test_no_text_makes_the_parser_fail_unexpectedly(text: str) -> None:
    try:
        document = cf.parse_document(text, "f.yaml")
    except ConfigError:
        return
    assert isinstance(document.data, dict)
