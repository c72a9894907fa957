"""List the operators that models of PyTorch are made of, and how each is carried out: the table in docs/pytorch.md.

    python scripts/census_torch.py            # prints it
    python scripts/census_torch.py --write    # puts it into the page

The example models run on tensors without elements: forward, backward, optimisers, generation.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import kernbench.torch  # noqa: F401 - knows how operators are carried out
from kernbench.common.imports import import_file
from kernbench.frontends.torch.dispatch import way_of

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "examples" / "pytorch" / "models.py"
PAGE = ROOT / "docs" / "pytorch.md"
BEGIN, END = "<!-- census -->", "<!-- end of census -->"
WAYS = {
    "kernel": "a kernel",
    "expression": "the kernel for elements",
    "list": "one launch for all tensors",
    "view": "a view, no time",
    "memory": "memory, not written",
    "decomposition": "PyTorch's parts of it",
    "another form": "the form that changes nothing, and a copy",
    "host": "the host: unmodelled",
}


class Census(TorchDispatchMode):
    """Notes the operators that are called inside, by the model that is named."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, set[str]] = defaultdict(set)
        self.model = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note one and carry it out."""
        if func.namespace == "aten":
            self.found[func].add(self.model)
        return func(*args, **(kwargs or {}))


@contextmanager
def called(census: Census, name: str) -> Iterator[None]:
    """Inside, operators are those of model ``name``."""
    census.model = name
    with census, torch.device("meta"):
        yield


def train(model: nn.Module, inputs: Any, loss_of: Callable[[Any], Any], **options: Any) -> None:
    """Do a step of training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    loss_of(model(inputs)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def take_census() -> dict[Any, set[str]]:
    """Return the operators of all models, and the models that call each."""
    models, census = import_file(MODELS, "the example models"), Census()
    ids = torch.zeros(2, 8, dtype=torch.int64, device="meta")
    flat = lambda logits: functional.cross_entropy(logits.flatten(0, 1), ids.flatten())  # noqa: E731
    with called(census, "encoder layer"):
        train(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), torch.zeros(2, 8, 32), lambda y: y.mean())
    with called(census, "GPT"):
        train(models.Gpt(50, 32, 1, 2, 16), ids, flat, foreach=True)
    with called(census, "Llama"):
        train(models.Llama(50, 32, 1), ids, flat, foreach=False)
    with called(census, "ViT"):
        train(models.Vit(16, 8, 32, 1), torch.zeros(2, 3, 16, 16), lambda y: y.logsumexp(-1).mean())
    with called(census, "generation"):
        model = models.Llama(50, 32, 1)
        model.generate(ids, 2)
        model.generate(ids, 2, temperature=1.0)
    return census.found


def tabulate(found: dict[Any, set[str]], *, with_models: bool) -> str:
    """Return the table, in Markdown: a row for each way to carry operators out, with the models of each if asked."""
    rows: dict[str, list[str]] = defaultdict(list)
    for operator, models in found.items():
        name = f"`{operator.name().removeprefix('aten::')}`"
        rows[way_of(operator).kind].append(f"{name} ({', '.join(sorted(models))})" if with_models else name)
    lines = ["| carried out by | operators |", "| --- | --- |"]
    lines += [
        f"| {title} ({len(rows[kind])}) | {', '.join(sorted(rows[kind]))} |"
        for kind, title in WAYS.items()
        if rows[kind]
    ]
    return "\n".join(lines)


def main() -> int:
    """Print the operators with their models, or put the operators into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put it into docs/pytorch.md")
    write = parser.parse_args().write
    table = tabulate(take_census(), with_models=not write)
    if not write:
        print(table)
        return 0
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
