"""Plans of tiny problems, as the tests of planning look at them."""

from toys import Corridor, Reinforce

from runnel.graph.flow import trace
from runnel.planning.plan import Machine, build_plan

MACHINE = Machine(cpus=8, devices=("cuda:0", "cuda:1"))


def plan(distribution, algorithm=None, environment=None, envs=16, machine=MACHINE):
    environment = environment or Corridor()
    graph = trace(algorithm or Reinforce(), environment.spec, envs)
    return build_plan(distribution, graph, environment, machine)


def nodes(built):
    return {fragment.name: (fragment.replicas, fragment.nodes) for fragment in built.fragments}


def cuts(built):
    return {(cut.source, cut.target, cut.what): cut.pattern for cut in built.cuts}


def exchanges(built):
    """How each cut edge synchronises, by the first thing that it carries."""
    return {cut.what[0]: cut.synchronisation for cut in built.cuts}
