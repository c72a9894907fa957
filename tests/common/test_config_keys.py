"""Tests of what is told about the keys of a configuration, and that every key of machines and benches has a meaning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, Field

import kernbench.benches
from kernbench.common.config import ConfigModel, Size
from kernbench.common.config_keys import ConfigKey, describe_key, list_paths, meanings_of, yaml_text
from kernbench.common.errors import InputError
from kernbench.runtime_api.bench_registry import known_benches
from kernbench.topology.builder import read_spec
from kernbench.topology.spec import TopologySpec


def check_lower(text: str) -> str:
    if not text.islower():
        raise ValueError(text)
    return text


PACKAGE = Path(kernbench.benches.__file__).parent
Named = Annotated[str, AfterValidator(check_lower)]


class Wheel(ConfigModel):
    """A wheel.

    It turns.
    """

    width_mm: float = Field(default=2.5, gt=0)
    """How wide it is, in
    one line here."""
    spokes: int = Field(ge=3, le=1_000_000)


class BigWheel(Wheel):
    """A wheel that is big."""

    store_bytes: Size | None = None
    """What it carries, as ``1MiB``."""


class Cart(ConfigModel):
    """A cart."""

    wheels: tuple[Wheel, ...] = Field(min_length=1)
    """All wheels."""
    spare: Wheel = Wheel(spokes=5)
    colour: Literal["red", "green"] | Wheel = "red"
    """Its colour."""
    loads: dict[Named, float] = Field(default_factory=dict)
    """Loads by name."""
    tilted: bool = False


CART = Cart(wheels=(Wheel(spokes=7),), spare=BigWheel(spokes=9, store_bytes=2048), loads={"hay": 1.5})


def key(path: str, content: Any = CART) -> ConfigKey:
    return describe_key(Cart, path, content)


def test_meanings_are_docstrings_of_the_class_and_its_bases() -> None:
    assert meanings_of(BigWheel) == {
        "width_mm": "How wide it is, in one line here.",
        "store_bytes": "What it carries, as 1MiB.",
    }


def test_a_number() -> None:
    found = key("wheels[0].spokes")
    assert (found.path, found.name, found.type, found.unit) == ("wheels[0].spokes", "spokes", "whole number", "")
    assert (found.allowed, found.required, found.default_text) == ("3 to 1,000,000", True, "required")
    assert (found.content, found.content_text, found.meaning) == (7, "7", "")
    width = key("spare.width_mm")
    assert (width.type, width.unit, width.allowed, width.default_text) == ("number", "mm", "more than 0", "2.5")


def test_a_section_takes_the_docstring_of_its_model_and_the_keys_of_its_content() -> None:
    found = key("spare")
    assert (found.meaning, found.type, found.section, found.default_text) == (
        "A wheel that is big.",
        "mapping",
        True,
        "",
    )
    assert [(each.name, each.content_text) for each in found.entries] == [
        ("width_mm", "2.5"),
        ("spokes", "9"),
        ("store_bytes", "2KiB"),
    ]
    assert (found.entries[2].type, found.entries[2].allowed) == ("size or null", "1 B to 1024 TiB")


def test_names_lists_mappings_and_switches() -> None:
    assert (key("colour").type, key("colour").choices) == ("name or mapping", ("red", "green"))
    assert (key("wheels").type, [each.path for each in key("wheels").entries]) == (
        "list",
        ["wheels[0].width_mm", "wheels[0].spokes"],
    )
    assert [(each.path, each.meaning) for each in key("loads").entries] == [("loads.hay", "Loads by name.")]
    assert (key("loads.straw").content_text, key("loads.straw").present) == ("", False)
    assert (key("tilted").type, key("tilted").default_text) == ("true or false", "false")


def test_without_a_machine_nothing_is_there() -> None:
    assert [each.name for each in key("", None).entries] == ["wheels", "spare", "colour", "loads", "tilted"]
    assert not key("spare", None).entries[0].present


def test_paths_are_of_what_can_have_a_value() -> None:
    assert list_paths(Cart, CART) == [
        *("wheels", "spare.width_mm", "spare.spokes", "spare.store_bytes"),
        *("colour", "loads.hay", "tilted"),
    ]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("whels", "unknown key 'whels'; there are: wheels, spare, colour, loads, tilted; did you mean 'wheels'?"),
        (
            "spare.spoke",
            "unknown key of spare: 'spoke'; there are: width_mm, spokes, store_bytes; did you mean 'spokes'?",
        ),
        ("spokes", "unknown key 'spokes'; there are: wheels, spare, colour, loads, tilted; elsewhere: spare.spokes"),
        ("tilted.far", "tilted has no key 'far': it is a true or false"),
        ("spare[1]", "unknown key of spare: '[1]'; there are: width_mm, spokes, store_bytes"),
        ("loads.HAY", "unknown key of loads: 'HAY'; there are: hay; did you mean 'hay'?"),
    ],
)
def test_a_path_that_leads_nowhere(path: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        key(path)
    assert str(raised.value).removesuffix(" ") == message


def test_what_is_no_path() -> None:
    with pytest.raises(InputError, match=r"'a\.\.b' is not a path; write it like"):
        key("a..b")


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "null"), (True, "true"), ([1, "a"], "[1, a]"), ({"a": None}, "{a: null}"), (0.5, "0.5")],
)
def test_values_as_yaml(content: object, text: str) -> None:
    assert yaml_text(content) == text


def walk(found: ConfigKey, spec: TopologySpec) -> Iterator[ConfigKey]:
    for entry in found.entries:
        yield entry
        if entry.section or "mapping" in entry.type or "list" in entry.type:
            yield from walk(describe_key(TopologySpec, entry.path, spec), spec)


def test_every_key_of_a_machine_has_a_meaning() -> None:
    spec = read_spec("default")
    keys = {each.path: each for each in walk(describe_key(TopologySpec, "", spec), spec)}
    assert [path for path, each in keys.items() if not each.meaning] == []
    assert keys.keys() >= set(list_paths(TopologySpec, spec))
    assert {"cube.hbm.timing.rc_ns", "cube.extra.name.links", "cube.hbm.mapping[0].fold"} <= keys.keys()
    assert keys["pe.gemm.macs_per_ns.f16"].content == 4096
    assert keys["cube.components.hbm_ctrl.attrs.access_ns"].unit == "ns"


def test_every_parameter_of_a_bench_has_a_meaning() -> None:
    benches = [each for each in known_benches() if each.file.startswith(str(PACKAGE))]
    assert len(benches) > 10
    missing = [
        f"{bench.name}: {each.path}"
        for bench in benches
        for each in describe_key(bench.params).entries
        if not each.meaning
    ]
    assert missing == []
