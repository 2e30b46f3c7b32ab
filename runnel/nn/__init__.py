"""Networks: from an observation to features, and from features to a policy and its values."""

from runnel.nn.action_values import ActionValues
from runnel.nn.actor_critic import ActorCritic, Prediction, initial_memory
from runnel.nn.gru import GRU
from runnel.nn.heads import Categorical, Gaussian, Head, MultiCategorical, head_for
from runnel.nn.networks import MLP, NatureCNN, Network, SpaceNetwork, network_for

__all__ = [
    "GRU",
    "MLP",
    "ActionValues",
    "ActorCritic",
    "Categorical",
    "Gaussian",
    "Head",
    "MultiCategorical",
    "NatureCNN",
    "Network",
    "Prediction",
    "SpaceNetwork",
    "head_for",
    "initial_memory",
    "network_for",
]
