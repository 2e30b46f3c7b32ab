"""The dataflow graph: the result of tracing an algorithm's loop. Data only.

Nodes are functions; edges are typed by pytrees of `jax.ShapeDtypeStruct` and know how many bytes they carry
in one iteration of the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from runnel.algorithm import Algorithm, asks_for
from runnel.config.run_config import Precision
from runnel.graph.kinds import KINDS, VALUE, KindTraits, LearnerValue, NodeKind
from runnel.ops import column_blocks
from runnel.ops.column_blocks import ColumnBlocks
from runnel.replay import Replay
from runnel.types import EnvSpec, PyTree


def tree_bytes(tree: PyTree) -> int:
    """The bytes of a tree of arrays or of their types."""
    return sum(math.prod(leaf.shape) * jax.numpy.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


@dataclass(frozen=True)
class Ref:
    """A value on its way through the graph: the output of a node, or a part of it.

    `ref.field` and `ref["field"]` are parts; they are refused at once where the node has no such output.
    """

    node: str
    type: PyTree = field(compare=False, repr=False)
    path: tuple[str | int, ...] = ()

    def __getattr__(self, name: str) -> Ref:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._part(name)

    def __getitem__(self, key: str | int) -> Ref:
        return self._part(key)

    def _part(self, key: str | int) -> Ref:
        return Ref(self.node, part_of(self.type, key, self.node), (*self.path, key))

    def take(self, value: PyTree) -> PyTree:
        """This part of the node's output."""
        for key in self.path:
            value = part_of(value, key, self.node)
        return value


def part_of(value: PyTree, key: str | int, where: str) -> PyTree:
    """Field, key or index `key` of a pytree."""
    if isinstance(value, dict):
        if key in value:
            return value[key]
        known = list(value)
    elif isinstance(key, int):
        return value[key]
    elif hasattr(value, key):
        return getattr(value, key)
    else:
        known = list(getattr(value, "_fields", ()))
    raise AttributeError(f"'{where}' has no '{key}'; it has {', '.join(map(str, known)) or 'a single array'}")


@dataclass(frozen=True)
class Rollout:
    """Settings of a rollout node."""

    steps: int
    discount: float | None = None
    omits: tuple[str, ...] = ()  # fields of the trajectory that are left empty and not sent


@dataclass(frozen=True)
class Sampling:
    """Settings of a replay node."""

    replay: Replay
    batch: int
    min_size: int
    samples_per_insert: float


@dataclass(frozen=True)
class Node:
    """One function of the loop.

    `replays` names the replays whose batches reach the node. With any, it runs once per batch; without, once per
    iteration.
    """

    name: str
    kind: NodeKind
    group: str
    inputs: tuple[Ref, ...]
    output: PyTree
    function: Callable[..., Any] | None = None
    settings: Rollout | Sampling | None = None
    replays: frozenset[str] = frozenset()
    priorities: Ref | None = None  # of a prioritised replay: where its new priorities come from
    column_blocks: tuple[ColumnBlocks, ...] = ()  # how it cuts what environments made into minibatches
    keeps: PyTree = None  # from one iteration to the next: all that is in a replay

    @property
    def traits(self) -> KindTraits:
        """What its kind means."""
        return KINDS[self.kind]

    @property
    def reads(self) -> LearnerValue | None:
        """What it reads of its group's learner."""
        if self.traits.reads_by_name and not any(asks_for(self.function, name) for name in ("params", "key")):
            return None
        return self.traits.reads

    @property
    def called(self) -> str:
        """What errors call its value."""
        return self.name if self.traits.output == VALUE else self.traits.output

    @property
    def sources(self) -> tuple[Ref, ...]:
        """All values that it takes, priorities included."""
        return self.inputs if self.priorities is None else (*self.inputs, self.priorities)

    @property
    def rollout(self) -> Rollout:
        assert isinstance(self.settings, Rollout)
        return self.settings

    @property
    def sampling(self) -> Sampling:
        assert isinstance(self.settings, Sampling)
        return self.settings


@dataclass(frozen=True)
class Edge:
    """A typed value that goes from one node to another, `per_iteration` times in each iteration."""

    source: str
    target: str
    what: str
    type: PyTree
    per_iteration: float = 1.0
    feedback: bool = False  # carries what this iteration made to the next one

    @property
    def published(self) -> bool:
        """Whether it carries what a learner has learnt: through a parameter store, not a stream."""
        return self.what in ("parameters", "state", "version")

    @property
    def bytes_per_iteration(self) -> int:
        return round(tree_bytes(self.type) * self.per_iteration)


@dataclass(frozen=True)
class Graph:
    """An algorithm's training loop on one environment: nodes in execution order, and the edges between them."""

    algorithm: Algorithm
    spec: EnvSpec
    envs: int
    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]
    states: Mapping[str, PyTree]  # by group: the type of the learner's state
    frozen: frozenset[str] = frozenset()  # groups that act and do not learn
    precision: Precision = "float32"  # of the networks that its nodes compute

    def of_kind(self, *kinds: NodeKind) -> list[Node]:
        return [node for node in self.nodes.values() if node.kind in kinds]

    def only(self, kind: NodeKind, group: str) -> Node:
        """The node of a kind of which a group has one."""
        return next(node for node in self.of_kind(kind) if node.group == group)

    def after_rollout(self) -> list[Node]:
        """The nodes that take trajectories, or values that follow from them, in the loop's order."""
        return [node for node in self.nodes.values() if node.traits.trains]

    def learners(self, group: str | None = None) -> list[Node]:
        """The nodes that change a state: of one group, or of all."""
        return [node for node in self.nodes.values() if node.traits.learns and group in (None, node.group)]

    @property
    def learning_groups(self) -> list[str]:
        """Those whose returns are the run's."""
        learning = [group for group in self.spec.groups if group not in self.frozen]
        return [group for group in learning if self.algorithm.for_group(group).learns]

    def columns(self, group: str) -> int:
        """B: how many columns the group's rollouts have."""
        return self.envs * self.spec.groups[group].agents

    def column_blocks(self, nodes: Iterable[str] | None = None) -> int:
        """How many column blocks the environments form, for nodes that learn: learners take as many as each other."""
        return column_blocks.column_block_count(self.envs, self._cut_by(nodes))

    def envs_for(self, learners: int, nodes: Iterable[str] | None = None) -> int:
        """This number of learners can share any multiple of the returned number of environments."""
        return column_blocks.envs_for(learners, self.envs, self._cut_by(nodes))

    def _cut_by(self, nodes: Iterable[str] | None) -> list[ColumnBlocks]:
        return [cut for name in (self.nodes if nodes is None else nodes) for cut in self.nodes[name].column_blocks]

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps (one action each, summed over environments) of one iteration."""
        return self.unroll * self.envs

    @property
    def bytes(self) -> int:
        """The size of learners' states, of the nodes' outputs in one iteration, and of replays."""
        leaves = jax.tree.leaves([dict(self.states), [(node.output, node.keeps) for node in self.nodes.values()]])
        return tree_bytes([leaf for leaf in leaves if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)])

    @property
    def unroll(self) -> int:
        """T: how many steps every environment takes in an iteration."""
        return self.of_kind("rollout")[0].rollout.steps
