"""The PEs that run collectives of a front end: a cube of their own, some PEs of each cube, or the tensors' PEs.

A collective takes as many of these PEs as its bytes need. The number depends on nothing else, so all ranks agree on it,
wherever their tensors are.
"""

from __future__ import annotations

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.frontends import TorchSettings
from kernbench.topology.spec import TopologySpec

SHARD_BYTES = 1024
"""Minimum bytes per PE. With smaller shards, reading a complete tensor costs more than parallel PEs save."""


@value(kw_only=True)
class CollectivePes:
    """PEs that run collectives on every SIP: ``pes`` of each of ``cubes``. ``name``: the setting, for reports.

    ``are_owners``: tensors are stored on the same PEs, so a PE mostly uses the memory beside it.
    """

    name: str
    cubes: tuple[int, ...]
    pes: tuple[int, ...]
    are_owners: bool = False

    def within(self, nbytes: int) -> tuple[tuple[int, int], ...]:
        """Return the (cube, PE) that share ``nbytes``: some PEs of the first cube, or all PEs of several cubes."""
        shares, in_cube = max(1, nbytes // SHARD_BYTES), len(self.pes)
        if shares < in_cube:
            return tuple([(self.cubes[0], pe) for pe in self.pes[:shares]])
        return tuple([(cube, pe) for cube in self.cubes[: shares // in_cube] for pe in self.pes])

    @property
    def places(self) -> tuple[tuple[int, int, int, int], ...]:
        """The PEs in the form of a tensor's places: (cube, PE, 0, 0)."""
        return tuple([(cube, pe, 0, 0) for cube in self.cubes for pe in self.pes])

    def __str__(self) -> str:
        return self.name


def policy_pes(policy: DPPolicy, spec: TopologySpec) -> CollectivePes:
    """Return the PEs over which a policy spreads tensors, however few of them own a shard of a small tensor."""
    counts = ((policy.num_cubes, spec.cubes_per_sip), (policy.num_pes, spec.pes_per_cube))
    cubes, pes = (tuple(range(limit if count is None else min(count, limit))) for count, limit in counts)
    return CollectivePes(name=f"of {policy}", cubes=cubes, pes=pes, are_owners=True)


def collective_pes(settings: TorchSettings, spec: TopologySpec) -> CollectivePes:
    """Return the PEs of the setting ``torch.comm``.

    By default collectives run on the first cube without tensors, or if there is none, on the PEs of the tensors. Raises
    InputError for a setting that leaves collectives or tensors without PEs.
    """
    comm, cubes = settings.comm, settings.cubes
    with_tensors = tuple(range(min(cubes, spec.cubes_per_sip)))
    if comm is None:
        comm = "cube" if cubes < spec.cubes_per_sip else "same"
    if comm == "same":
        pes = tuple(range(pes_of_tensors_in_cube(settings, spec)))
        return CollectivePes(name=comm, cubes=with_tensors, pes=pes, are_owners=True)
    if comm == "cube":
        if cubes >= spec.cubes_per_sip:
            raise InputError(
                f"--set torch.comm=cube: tensors lie on all {spec.cubes_per_sip} cubes of a SIP "
                f"(torch.cubes={cubes}), so none is left for collectives. Set "
                f"{'torch.cubes to less, or ' if cubes > 1 else ''}torch.comm to pes:K or same"
            )
        free = _cubes_of_collectives(cubes, spec)
        name = f"cube {free[0]}" if len(free) == 1 else f"cubes {free[0]} and {free[1]}"
        return CollectivePes(name=name, cubes=free, pes=tuple(range(spec.pes_per_cube)))
    last = tuple(range(pes_of_tensors_in_cube(settings, spec), spec.pes_per_cube))[-settings.comm_pes :]
    return CollectivePes(name=comm, cubes=with_tensors, pes=last)


def _cubes_of_collectives(cubes: int, spec: TopologySpec) -> tuple[int, ...]:
    """Return the first cube without tensors, or the first two, when the first ``cubes`` have tensors.

    A collective accesses the tensors' cubes as often as the other SIPs. If its messages pass a cube with tensors on
    their way to the IO chiplet, both use one link between cubes, so a second cube takes half of the work.
    """
    mesh = spec.sip.cube_mesh.grid
    towards_io = mesh.neighbours(cubes).get(spec.sip.io_chiplet.edge)
    passes_tensors = towards_io is not None and towards_io < cubes
    return tuple(range(cubes, min(cubes + (2 if passes_tensors else 1), spec.cubes_per_sip)))


def pes_of_tensors_in_cube(settings: TorchSettings, spec: TopologySpec) -> int:
    """Return the number of PEs in each cube over which tensors are spread: without those of ``torch.comm=pes:K``.

    Raises InputError if tensors and collectives together need more PEs than a cube has.
    """
    total, taken = spec.pes_per_cube, settings.comm_pes
    if taken >= total:
        raise InputError(
            f"--set torch.comm=pes:{taken}: a cube has {total} PEs, and tensors need at least one of them; "
            f"set K to at most {total - 1}"
            if total > 1
            else f"--set torch.comm=pes:{taken}: a cube has one PE, which tensors need; set torch.comm=same"
        )
    if settings.pes is not None and taken and settings.pes + taken > total:
        raise InputError(
            f"--set torch.comm=pes:{taken}: with torch.pes={settings.pes} this takes {settings.pes + taken} PEs "
            f"of a cube, which has {total}; set torch.pes to at most {total - taken}"
        )
    return total - taken if settings.pes is None else settings.pes
