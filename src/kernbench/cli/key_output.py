"""Keys of a configuration as tables and as plain data."""

from __future__ import annotations

from rich.table import Table

from kernbench.cli.console import Json, facts, table, text
from kernbench.common.config_keys import ConfigKey


def key_document(key: ConfigKey) -> dict[str, Json]:
    """Return a key, and those below it, as plain data."""
    return {
        "path": key.path,
        "meaning": key.meaning,
        "type": key.type,
        "unit": key.unit or None,
        "required": key.required,
        "default": key.default,
        "allowed": key.allowed or None,
        "choices": list(key.choices),
        "value": key.content,
        "keys": [key_document(each) for each in key.entries],
    }


def key_tables(key: ConfigKey, machine: str) -> list[Table]:
    """Return what is known of a key, and the keys below it, as tables."""
    rows = [("type", type_text(key)), ("allowed", key.allowed), ("default", key.default_text)]
    here = [] if key.section else [(f"in {machine}", key.content_text)]
    about = facts(key.path, [("is", key.meaning), *((name, words) for name, words in rows if words), *here])
    below = key_table(f"Keys of {key.path}" if key.path else "Sections", key, f"in {machine}")
    return [about, below] if key.path else [below]


def key_table(title: str, section: ConfigKey, here: str | None = None) -> Table:
    """Return the keys of a section as a table, a row each; ``here``: the head of the column of their values."""
    made = table(title, text("key"), *([text(here)] if here else []), text("default"), text("type"), text("is"))
    for key in section.entries:
        values = [*([key.content_text] if here else []), key.default_text]
        kind = type_text(key).replace("name", ", ".join(key.choices), 1) if key.choices else type_text(key)
        made.add_row(key.name, *values, kind, "" if key.meaning == section.meaning else key.meaning)
    return made


def type_text(key: ConfigKey) -> str:
    """Return the type of a key with its unit."""
    return f"{key.type}, {key.unit}" if key.unit and key.unit != "bytes" else key.type
