from __future__ import annotations

import pickle

from kernbench.common.errors import KernelNote, notes_of


def test_the_note_of_a_kernel_knows_its_place_also_in_another_process() -> None:
    error = ValueError("mine")
    error.add_note("first")
    error.add_note(KernelNote((0, 1, 2), "gemm"))
    first, note = notes_of(pickle.loads(pickle.dumps(error)))
    assert (first, note) == ("first", "on sip0.cube1.pe2, kernel 'gemm'")
    assert isinstance(note, KernelNote)
    assert (note.pe, note.kernel) == ((0, 1, 2), "gemm")
