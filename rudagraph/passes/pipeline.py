"""Which passes run, in what order, and why each is where it is.

Input: a graph. Output: the graph after every pass, verified; each result is recorded by name.
Invariant: valid in, valid out; a pass that changes nothing returns the object it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rudagraph.ir.graph import Graph, Role
from rudagraph.ir.strides import Strided
from rudagraph.ir.verify import verify
from rudagraph.options import environment
from rudagraph.passes import linear_cross_entropy as chunked_loss
from rudagraph.passes.accumulate import accumulate
from rudagraph.passes.expand import expand
from rudagraph.passes.fuse import fuse
from rudagraph.passes.hoist_permutes import hoist_permutes
from rudagraph.passes.linear_cross_entropy import Chunking, linear_cross_entropy
from rudagraph.passes.materialise import materialise
from rudagraph.passes.move_views import move_views
from rudagraph.passes.name_gradients import name_gradients
from rudagraph.passes.own_outputs import own_outputs
from rudagraph.passes.recognise import recognise
from rudagraph.passes.rotate_halves import rotate_halves
from rudagraph.passes.shape_reductions import shape_reductions
from rudagraph.passes.simplify import simplify
from rudagraph.passes.turn_heads import turn_heads

Pass = Callable[[Graph], Graph]
Record = Callable[[str, Graph], object]

# On the joint graph, before it is cut into forward and backward.
JOINT_PASSES: tuple[Pass, ...] = (
    # First: what follows matches patterns, and there are fewer shapes of a pattern afterwards.
    simplify,
    # Before expansion: a loss is one op here, and its product beside it.
    linear_cross_entropy,
    # Before the cut: saved values are chosen among primitives, not inside composites.
    expand,
    # Composites and backward formulas reduce as PyTorch does; kernels know three forms.
    shape_reductions,
    # Again: expansion leaves results that nobody reads, and sums that two composites share.
    simplify,
    # Leaves views over split axes, which moving views then carries to the neighbours.
    rotate_halves,
    # After simplification, which folds most reshapes away; what is left here blocks fusion.
    move_views,
    # Before hoisting, to which it gives work.
    turn_heads,
    # Once shapes agree: what is only read turned is computed turned, and needs no copy below.
    hoist_permutes,
    # Chains of reshapes that moving has left.
    simplify,
    # Once views are settled, which hide sums; before kernels grow, which take additions along.
    accumulate,
    # Before the cut: a copy made for a product in forward is saved, not made again in backward.
    materialise,
    # Last: a name is for readers, and what the passes before made has the names of its parts.
    name_gradients,
)


def joint_passes(chunking: Chunking) -> tuple[Pass, ...]:
    """The same passes for a target that wants other chunks of a loss."""

    def linear_cross_entropy(graph: Graph) -> Graph:
        return chunked_loss.linear_cross_entropy(graph, chunking)

    return tuple(
        linear_cross_entropy if run is chunked_loss.linear_cross_entropy else run
        for run in JOINT_PASSES
    )


def entry_passes(residuals: Mapping[str, Strided]) -> tuple[Pass, ...]:
    """The passes on forward and on backward; `residuals` are the layouts of what forward saved."""

    def materialise_entry(graph: Graph) -> Graph:
        known = {
            port.value: residuals[port.target]
            for port in graph.inputs
            if port.role is Role.RESIDUAL
        }
        return materialise(graph, known)

    return (
        # The cut separates neighbours: what is left on one side may now agree on another shape.
        move_views,
        # Moving can leave a reshape that no strides express.
        materialise_entry,
        # Before kernels grow: a copy can join the kernel that makes what it copies.
        own_outputs,
        # What is inside a kernel is no longer for others to look at.
        fuse,
        # Of what became a kernel: names for readers, nothing that is computed.
        recognise,
    )


def run_passes(passes: tuple[Pass, ...], graph: Graph, record: Record | None = None) -> Graph:
    """Run the passes in order, verify what they give, hand each result to `record` with its name.

    The last result is verified. Where it is not valid, or a pass fails, those before are as well,
    so that the error names the pass at fault.
    """
    each = environment("RUDAGRAPH_VERIFY") == "each"
    results: list[tuple[str, Graph]] = []
    try:
        for run in passes:
            name = getattr(run, "__name__", "pass")
            graph = run(graph)
            results.append((name, graph))
            if record is not None:
                record(name, graph)
            if each:
                verify(graph, stage=name, verified=results[-2][1] if len(results) > 1 else None)
        return graph if each or not results else verify(graph, stage=name)
    except Exception:
        for name, result in results:
            verify(result, stage=name)
        raise
