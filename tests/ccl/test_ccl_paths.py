"""Code of the user's that ``ccl.yaml`` names by a path: it is looked up beside that file, wherever one works."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ccl_support import machine, sips

from kernbench.ccl.config import resolve_algorithm_config
from kernbench.ccl.install import edges_of, find_algorithm, install_ipcq, layout_of
from kernbench.ccl.loading import Algorithm, load_algorithm, load_ccl_config
from kernbench.common.errors import ConfigError, InputError
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.context import RuntimeContext

MODULE = """
from neighbour import PEER

def kernel(t_ptr, n_elem, tl): ...
def kernel_args(*, n_elem, world_size, kernel_gain=1, **config): return (PEER, kernel_gain)
def pair(topology, config): return [((0, 0, 0), "E", PEER)]
def two(topology, rank): return [(0, 0), (0, PEER[2])]
def anything(tensor, world_size, topology): ...
"""

Load = Callable[..., Algorithm]


def write(folder: Path, pe: int = 1, path: str = "mine.py") -> None:
    """A module, and one that it imports, by which it can be told from others of its name."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(MODULE)
    (file.parent / "neighbour.py").write_text(f"PEER = (0, 0, {pe})\n")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where one works: there is nothing of what the files name. What is imported from there is forgotten."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    yield tmp_path
    # The dict itself: an import statement looks into that one, whatever ``sys.modules`` is.
    for name, module in list(sys.modules.items()):
        places = (getattr(module, "__file__", None), *getattr(module, "__path__", ()))
        if any(str(place).startswith(str(tmp_path)) for place in places):
            del sys.modules[name]


def load(folder: Path, **entries: str) -> Algorithm:
    """The algorithm of a file there."""
    text = ", ".join(f"{key}: '{value}'" for key, value in entries.items())
    (folder / "ccl.yaml").write_text(f"algorithms:\n  a: {{ {text} }}\n")
    return load_algorithm(resolve_algorithm_config(load_ccl_config(folder / "ccl.yaml")))


@pytest.mark.parametrize("module", ["mine.py", "./mine.py", "../there/mine.py", "mine", "{folder}/mine.py"])
@pytest.mark.parametrize("dot", ["mine.", "mine.py:", "./mine.py:", "../there/mine.py:"])
def test_a_file_beside_it(elsewhere: Path, module: str, dot: str) -> None:
    folder = elsewhere / "there"
    write(folder)
    names = {"topology": f"{dot}pair", "mapper": f"{dot}two", "validator": f"{dot}anything"}
    found = load(folder, module=module.format(folder=folder), **names)
    assert edges_of(found, machine().spec) == [((0, 0, 0), "E", (0, 0, 1))]
    assert layout_of(found, machine().spec).ranks[1] == ((1, 0, 0), (1, 0, 1))
    assert found.validator_fn.__name__ == "anything"


@pytest.mark.parametrize("module", ["below/deep.py", "below.deep"])
def test_a_file_in_a_folder_beside_it(elsewhere: Path, module: str) -> None:
    write(elsewhere, 2, "below/deep.py")
    assert load(elsewhere, module=module, topology="below.deep.pair").args_for(sips(2), n_elem=1) == ((0, 0, 2), 1)


def test_a_module_of_a_package_beside_it(elsewhere: Path) -> None:
    write(elsewhere, 3, "its_package/inner.py")
    (elsewhere / "its_package" / "__init__.py").touch()
    (elsewhere / "its_package" / "inner.py").write_text(MODULE.replace("from neighbour", "from .neighbour"))
    found = load(elsewhere, module="its_package.inner", topology="its_package.inner.pair")
    assert edges_of(found, sips(2)) == [((0, 0, 0), "E", (0, 0, 3))]


def test_files_of_one_name_in_two_folders(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after one of them was imported by its name."""
    for at, name in enumerate(("one", "two", "three"), start=1):
        write(elsewhere / name, at, "mine.py")
        (elsewhere / name / "mine.py").write_text(MODULE.replace("from neighbour import PEER", f"PEER = (0, 0, {at})"))
    monkeypatch.chdir(elsewhere / "three")
    for module in ("mine", "mine.py"):
        for at, name in ((3, "three"), (1, "one"), (2, "two"), (3, "three")):
            found = load(elsewhere / name, module=module, topology="mine.pair")
            assert edges_of(found, machine().spec) == [((0, 0, 0), "E", (0, 0, at))]


def test_a_package_that_hides_the_one_beside_it_is_an_error(elsewhere: Path) -> None:
    for name in ("one", "two"):
        write(elsewhere / name, 1, "its_package/inner.py")
        (elsewhere / name / "its_package" / "__init__.py").touch()
        (elsewhere / name / "its_package" / "inner.py").write_text(MODULE.replace("from neighbour", "from .neighbour"))
    load(elsewhere / "one", module="its_package.inner", topology="none")
    with pytest.raises(InputError, match=r"package 'its_package' in .*two is hidden by another .*one.*; rename one"):
        load(elsewhere / "two", module="its_package.inner", topology="none")


def test_a_module_that_the_program_imports_by_its_name_is_the_same(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(elsewhere)
    monkeypatch.syspath_prepend(str(elsewhere))
    found = load(elsewhere, module="mine", topology="mine.pair")
    import mine  # type: ignore[import-not-found]  # noqa: PLC0415

    assert (found.kernel, found.topology_fn) == (mine.kernel, mine.pair)


def test_every_way_to_a_configuration_looks_beside_its_file(elsewhere: Path) -> None:
    write(elsewhere / "there")
    (elsewhere / "there" / "ccl.yaml").write_text("algorithms:\n  a: { module: mine.py, topology: mine.pair }\n")
    path = "../there/ccl.yaml"
    engine = GraphEngine(machine())
    assert find_algorithm(ccl=path).kernel_args(n_elem=1, world_size=1) == ((0, 0, 1), 1)
    with RuntimeContext(engine, ccl=path) as torch:
        torch.uninstall_ipcq(torch.install_ipcq())
    assert install_ipcq(engine, ccl=Path(path)).queues.edges == (((0, 0, 0), "E", (0, 0, 1)),)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (
            {"module": "gone.py"},
            r"ccl.yaml:2: algorithm 'a': module 'gone.py': no such file \(looked for .*/there/gone",
        ),
        (
            {"module": "gone.mine"},
            r"ccl.yaml:2: .* there is no module 'gone'; looked .* in .*/there and in .*/elsewhere",
        ),
        ({"module": "exits.py"}, r"ccl.yaml:2: .*module 'exits.py': line 1: SystemExit: 0"),
        ({"module": "mine.py", "topology": "mine.gone"}, r"ccl.yaml:2: .*module 'mine' .* has no 'gone'"),
        ({"module": "mine.py", "topology": "mine.py"}, "say which one: mine.py:NAME"),
        ({"module": "mine.py", "topology": "mine.py:gone"}, "ccl.yaml:2: .*has no 'gone'"),
        ({"module": "mine.py", "mapper": "gone.py:f"}, "no such file"),
        ({"module": ".."}, "importing '..' failed"),
        ({"module": "a..b"}, "there is no module 'a'"),
        ({"module": ".py"}, "no such file"),
        ({"module": "mine.py", "validator": "."}, "a dotted path has a name on each side of a dot"),
        ({"module": "mine.py", "validator": "mine.py:"}, "has no ''"),
    ],
)
def test_a_path_that_leads_nowhere_says_where_it_stands_and_where_was_looked(
    elsewhere: Path, entries: dict[str, str], says: str
) -> None:
    write(elsewhere / "there")
    (elsewhere / "there" / "exits.py").write_text("raise SystemExit(0)\n")
    with pytest.raises(InputError, match=says):
        load(elsewhere / "there", **{"topology": "none", **entries})


def test_a_name_that_is_no_module_there_lists_what_ships(elsewhere: Path) -> None:
    with pytest.raises(ConfigError, match="unknown module 'mine'; there are: all_gather"):
        load(elsewhere, module="mine", topology="none")
