"""Notes on errors that say where they come from (``BaseException.add_note``), for readers and for programs."""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.common.ids import pe_name


class KernelNote(str):
    """On the error of a kernel: ``on sip0.cube0.pe1, kernel 'gemm'``. It knows both."""

    __slots__ = ("kernel", "pe")

    def __new__(cls, pe: tuple[int, int, int], kernel: str) -> KernelNote:
        """The note of ``kernel`` on ``pe`` (sip, cube, pe)."""
        note = super().__new__(cls, f"on {pe_name(pe)}, kernel {kernel!r}")
        note.pe, note.kernel = pe, kernel
        return note

    pe: tuple[int, int, int]
    kernel: str

    def __getnewargs__(self) -> tuple[tuple[int, int, int], str]:  # type: ignore[override]
        """For pickle: errors of worker processes have notes."""
        return self.pe, self.kernel


def notes_of(error: BaseException) -> Iterator[str]:
    """The notes that were added to an error on its way up."""
    yield from vars(error).get("__notes__", ())
