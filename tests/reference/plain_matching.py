"""Maximum-weight matching, plain reference: Edmonds' primal-dual method without optimisations, O(n^4).

The oracle of `matching.py`: it shares no code with the kernels, starts from other duals, and looks at every edge at
every step. Python integers, no tolerance.

Odd n gets a vertex with zero weights and negative weights become 0, so that a best perfect matching is sought; pairs
of weight 0 are dropped from it. A vertex has a dual y, a blossom (an odd set of vertices) a dual z >= 0; for every
edge y_i + y_j + sum of z of the blossoms around both >= 2 W_ij, with equality ("tight") on every matched edge. When
that holds and all vertices are matched, no matching weighs more. Weights are doubled so that no halves appear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Node:
    """A vertex, or a blossom: an odd cycle of nodes, of which the first holds the base.

    `edges[i]` is (vertex in child i, vertex in the next child). `link` is the edge by which a T node hangs in its
    tree: (vertex in its parent, vertex in it).
    """

    vertices: list[int]
    children: list[Node] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    dual: int = 0
    label: str = ""
    link: tuple[int, int] = (-1, -1)


class Search:
    """The state of the method, for an even number of vertices."""

    def __init__(self, doubled: list[list[int]]) -> None:
        """Start with feasible duals, no pair and no blossom."""
        self.weights = doubled
        self.y = [max(row) for row in doubled]
        self.mate = [-1] * len(doubled)
        self.top = [Node([v]) for v in range(len(doubled))]  # of each vertex, the node that is inside no other

    def slack(self, i: int, j: int) -> int:
        """By how much the duals exceed the edge's weight; `i` and `j` in different top nodes."""
        return self.y[i] + self.y[j] - 2 * self.weights[i][j]

    def base(self, node: Node) -> int:
        """The vertex that is matched outside the node, or free."""
        return self.base(node.children[0]) if node.children else node.vertices[0]

    def above(self, node: Node) -> Node | None:
        """The S node above an S node, two edges up its tree."""
        mate = self.mate[self.base(node)]
        return None if mate < 0 else self.top[self.top[mate].link[0]]

    def path(self, node: Node) -> list[Node]:
        """S nodes from here to the root."""
        up = self.above(node)
        return [node] if up is None else [node, *self.path(up)]

    def phase(self) -> None:
        """Grow trees from all free vertices until two trees meet, then match along the way between the roots."""
        for node in self.top:
            node.label = ""
        for node in self.top:
            if self.mate[self.base(node)] < 0:
                node.label = "S"
        while True:
            delta, edge, blossom = self.next_event()
            self.change_duals(delta)
            if blossom is not None:
                self.expand(blossom)
                continue
            u, v = edge
            if self.top[v].label == "":
                self.grow(u, v)
            elif self.path(self.top[u])[-1] is self.path(self.top[v])[-1]:
                self.shrink(u, v)
            else:
                self.flip(u, v)
                self.flip(v, u)
                return

    def next_event(self) -> tuple[int, tuple[int, int], Node | None]:
        """Smallest dual change that makes an edge of an S vertex tight or brings the dual of a T blossom to 0."""
        events: list[tuple[int, tuple[int, int], Node | None]] = []
        for u, in_u in enumerate(self.top):
            if in_u.label == "T" and in_u.children:
                events.append((in_u.dual // 2, (-1, -1), in_u))
            if in_u.label == "S":
                for v, in_v in enumerate(self.top):
                    if in_v.label == "":
                        events.append((self.slack(u, v), (u, v), None))
                    elif in_v.label == "S" and in_v is not in_u:
                        events.append((self.slack(u, v) // 2, (u, v), None))  # even: see kernels of the same method
        return min(events, key=lambda event: event[0])

    def change_duals(self, delta: int) -> None:
        """Lower y in S nodes, raise it in T nodes; z the other way, twice."""
        sign = {"S": -1, "T": 1, "": 0}
        for v, node in enumerate(self.top):
            self.y[v] += sign[node.label] * delta
        for node in set(self.top):
            node.dual -= 2 * sign[node.label] * delta

    def grow(self, u: int, v: int) -> None:
        """Hang the node of `v`, and the node it is matched with, below the S vertex `u`."""
        node = self.top[v]
        node.label, node.link = "T", (u, v)
        self.top[self.mate[self.base(node)]].label = "S"

    def shrink(self, u: int, v: int) -> None:
        """Make a blossom of the odd cycle that the tight edge (u, v) closes in a tree."""
        down, up = self.path(self.top[u]), self.path(self.top[v])
        while len(down) > 1 and len(up) > 1 and down[-2] is up[-2]:
            down.pop()
            up.pop()
        children, edges = [down[-1]], []
        for node in reversed(down[:-1]):
            base = self.base(node)
            between = self.top[self.mate[base]]
            children += [between, node]
            edges += [between.link, (self.mate[base], base)]
        edges.append((u, v))
        for node in up[:-1]:
            base = self.base(node)
            between = self.top[self.mate[base]]
            children += [node, between]
            edges += [(base, self.mate[base]), (between.link[1], between.link[0])]
        blossom = Node([w for c in children for w in c.vertices], children, edges, label="S")
        for w in blossom.vertices:
            self.top[w] = blossom

    def expand(self, blossom: Node) -> None:
        """Children of a T blossom become top nodes; the even way from its link to its base stays in the tree."""
        for child in blossom.children:
            child.label = ""
            for w in child.vertices:
                self.top[w] = child
        entry = blossom.children.index(self.top[blossom.link[1]])
        way, edges = self.even_way(blossom, entry)
        links = [blossom.link, *edges]
        for i, child in enumerate(way):
            child.label = "ST"[i % 2 == 0]
            child.link = links[i]

    def even_way(self, blossom: Node, start: int) -> tuple[list[Node], list[tuple[int, int]]]:
        """Children from number `start` to the first by an even number of steps, and the edges walked."""
        children, edges = blossom.children, blossom.edges
        if start % 2 == 0:
            return children[start::-1], [(b, a) for a, b in edges[:start][::-1]]
        return [*children[start:], children[0]], edges[start:]

    def flip(self, v: int, w: int) -> None:
        """Match `v` with `w`, and change the matching from there up to the root of the tree of `v`."""
        node = self.top[v]
        old = self.mate[self.base(node)]
        self.rotate(node, v)
        self.mate[v] = w
        if old >= 0:
            between = self.top[old]
            outer, inner = between.link
            self.rotate(between, inner)
            self.mate[inner] = outer
            self.flip(outer, inner)

    def rotate(self, node: Node, v: int) -> None:
        """Make the vertex `v` the base of a node."""
        if not node.children:
            return
        start = next(i for i, child in enumerate(node.children) if v in child.vertices)
        way, edges = self.even_way(node, start)
        for i in range(1, len(way), 2):
            a, b = edges[i]
            self.rotate(way[i], a)
            self.rotate(way[i + 1], b)
            self.mate[a], self.mate[b] = b, a
        node.children = node.children[start:] + node.children[:start]
        node.edges = node.edges[start:] + node.edges[:start]
        self.rotate(node.children[0], v)


def reference_matching(weights: Sequence[Sequence[int]]) -> list[int]:
    """Mate of each vertex in a maximum-weight matching, -1 if none, for a symmetric matrix of whole numbers.

    >>> reference_matching([[0, 5, 0, 0], [5, 0, 6, 0], [0, 6, 0, 5], [0, 0, 5, 0]])
    [1, 0, 3, 2]
    """
    n = len(weights)
    even = n + n % 2
    doubled = [[0] * even for _ in range(even)]
    for i in range(n):
        for j in range(n):
            doubled[i][j] = 2 * max(int(weights[i][j]), 0) if i != j else 0
    search = Search(doubled)
    while -1 in search.mate:
        search.phase()
    return [j if j >= 0 and doubled[i][j] > 0 else -1 for i, j in enumerate(search.mate[:n])]
