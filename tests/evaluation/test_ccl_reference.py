"""Tables to compare collectives with."""

from __future__ import annotations

import pytest
from ccl_study_support import study

from kernbench.common.errors import InputError
from kernbench.evaluation.ccl_fabrics import ring_of
from kernbench.evaluation.ccl_report import CclReference, compare_sizes, read_reference, reference_curve, report_ccl


def written(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return str(path)


def test_a_table_as_spreadsheets_and_hands_write_it(tmp_path):
    text = "\ufeffsize_bytes, latency_ns\r\n4096.0, 20.5\r\n\r\n2.56E+02, 10\r\n"
    assert read_reference(written(tmp_path, text)).latencies == ((256, 10.0), (4096, 20.5))


def test_a_table_in_any_order_with_more_columns(tmp_path):
    found = read_reference(written(tmp_path, "tool,latency_ns,size_bytes\nx,20.5,4096\nx,10,256\n"))
    assert found == CclReference("table.csv", ((256, 10.0), (4096, 20.5)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no column size_bytes, latency_ns; its first line has: nothing"),
        ("size,latency_ns\n1,2\n", "no column size_bytes"),
        ("size_bytes,latency_ns\n", "no lines below the first"),
        ("size_bytes,latency_ns\n4,5\nx,5\n", "table.csv:3: found 'x', '5'"),
        ("size_bytes,latency_ns\n4.5,5\n", "table.csv:2: found '4.5', '5'"),
        ("size_bytes,latency_ns\ninf,5\n", "table.csv:2: found 'inf', '5'"),
        ("size_bytes,latency_ns\n4\n", "table.csv:2: found '4', None"),
        ("size_bytes,latency_ns\n4,0\n", "both have to be above 0"),
        ("size_bytes,latency_ns\n4,nan\n", "both have to be above 0"),
        ("size_bytes,latency_ns\n4,5\n4,6\n", "table.csv:3: size 4 again"),
    ],
)
def test_what_is_wrong_with_a_table(tmp_path, text, problem):
    with pytest.raises(InputError) as caught:
        read_reference(written(tmp_path, text))
    assert problem in str(caught.value)


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match="cannot be read as a reference table"):
        read_reference(str(tmp_path / "none.csv"))


@pytest.fixture(scope="module")
def sweep():
    return study(fabrics=(ring_of(2),), kinds=("tcm",), ranks=()).run()


def test_errors_are_shares_of_the_reference(sweep):
    latencies = {point.nbytes: point.direct.latency_ns for point in reference_curve(sweep)}
    reference = CclReference("r", ((64, latencies[64] / 1.25), (5000, latencies[5000] * 2)))
    found = compare_sizes(sweep, reference)
    assert [each.error for each in found] == [pytest.approx(0.25), pytest.approx(-0.5)]
    assert "reference r, largest error 50.0%:" in report_ccl(reference).notes(sweep)


def test_a_size_that_was_not_simulated(sweep):
    with pytest.raises(InputError, match="r: the results lack 128 bytes; run without --render-only"):
        compare_sizes(sweep, CclReference("r", ((128, 1.0),)))
