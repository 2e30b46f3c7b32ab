"""Networks: from an observation to features, and from features to a policy and its values."""

from runnel.nn.action_values import ActionValues
from runnel.nn.actor_critic import ActorCritic, Prediction, initial_memory
from runnel.nn.bounds import Bounds, bounds_of
from runnel.nn.critics import Critics, joint_network
from runnel.nn.gru import GRU
from runnel.nn.heads import Categorical, Gaussian, Head, MultiCategorical, head_for
from runnel.nn.networks import MLP, NatureCNN, Network, SpaceNetwork, network_for
from runnel.nn.policies import DeterministicPolicy, SquashedGaussian, StochasticPolicy

__all__ = [
    "GRU",
    "MLP",
    "ActionValues",
    "ActorCritic",
    "Bounds",
    "Categorical",
    "Critics",
    "DeterministicPolicy",
    "Gaussian",
    "Head",
    "MultiCategorical",
    "NatureCNN",
    "Network",
    "Prediction",
    "SpaceNetwork",
    "SquashedGaussian",
    "StochasticPolicy",
    "bounds_of",
    "head_for",
    "initial_memory",
    "joint_network",
    "network_for",
]
