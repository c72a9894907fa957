"""The vocabulary of every room: units, ids, types, operators, errors; and the version, whose one source is here."""

__version__ = "0.2.0"
