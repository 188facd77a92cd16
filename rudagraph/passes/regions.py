r"""Groups of ops kept in an order without cycles while they are merged.

    a -> b -> d        merging a and d would put b both after and before the group: refused
      \-> c ->/        merging a and b is fine: the group takes b's place, what depends on a follows

Input: nodes in topological order and their edges. Invariant: `order` is a topological order of the
groups. The check walks only nodes that lie between the two in the order, so local merges are cheap.
"""

from __future__ import annotations

from collections.abc import Iterable

_HOLE = -1  # a place in the order that a merge has left


class Regions:
    """A graph of groups; node numbers are those of the first topological order."""

    def __init__(self, count: int, edges: Iterable[tuple[int, int]]) -> None:
        self.order = list(range(count))
        self.position = list(range(count))
        self.before: list[dict[int, None]] = [{} for _ in range(count)]
        self.after: list[dict[int, None]] = [{} for _ in range(count)]
        self.members: list[list[int]] = [[node] for node in range(count)]
        self._merged_into = list(range(count))
        for tail, head in edges:
            self.after[tail][head] = None
            self.before[head][tail] = None

    def find(self, node: int) -> int:
        """The group that the node is part of."""
        root = node
        while self._merged_into[root] != root:
            root = self._merged_into[root]
        while self._merged_into[node] != root:
            self._merged_into[node], node = root, self._merged_into[node]
        return root

    def merge(self, left: int, right: int) -> bool:
        """Make two groups one, named by the earlier; False where that would close a cycle."""
        first, last = sorted((left, right), key=self.position.__getitem__)
        between = self._followers(first, last)
        if between is None:
            return False
        self._reorder(first, last, between)
        for table, inverse in ((self.after, self.before), (self.before, self.after)):
            for other in table[last]:
                inverse[other].pop(last, None)
                if other != first:
                    table[first][other] = None
                    inverse[other][first] = None
            table[first].pop(last, None)
            table[last] = {}
        self.members[first] += self.members[last]
        self.members[last] = []
        self._merged_into[last] = first
        return True

    def groups(self) -> list[list[int]]:
        """Members of each group, in order; groups in topological order."""
        return [sorted(self.members[group]) for group in self.order if group != _HOLE]

    def _followers(self, first: int, last: int) -> set[int] | None:
        """What depends on `first` and lies before `last`; None if `last` depends on any of it."""
        end = self.position[last]
        seen: set[int] = set()
        stack = [node for node in self.after[first] if self.position[node] < end]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if last in self.after[node]:
                return None
            stack += [n for n in self.after[node] if self.position[n] < end and n not in seen]
        return seen

    def _reorder(self, first: int, last: int, followers: set[int]) -> None:
        """Others, then the group, then what depends on it."""
        start, end = self.position[first], self.position[last]
        window = [node for node in self.order[start + 1 : end] if node != _HOLE]
        others = [node for node in window if node not in followers]
        after = [node for node in window if node in followers]
        placed = [*others, first, *after]
        holes = [_HOLE] * (end + 1 - start - len(placed))
        self.order[start : end + 1] = placed + holes
        for position, node in enumerate(placed, start):
            self.position[node] = position
