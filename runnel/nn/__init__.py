"""Networks: from an observation to features, and from features to a policy and its values."""

from runnel.nn.action_values import ActionValues
from runnel.nn.actor_critic import ActorCritic, Prediction, initial_memory
from runnel.nn.bounds import Bounds, bounds_of
from runnel.nn.central import AgentPolicy, StateValue
from runnel.nn.cores import Core
from runnel.nn.critics import Critics, joint_network
from runnel.nn.gru import GRU
from runnel.nn.heads import Categorical, Gaussian, Head, MultiCategorical, head_for
from runnel.nn.lstm import LSTM
from runnel.nn.mixing import Mixer
from runnel.nn.networks import MLP, MinAtarCNN, NatureCNN, Network, SpaceNetwork, network_for
from runnel.nn.noisy import NoisyDense
from runnel.nn.policies import DeterministicPolicy, SquashedGaussian, StochasticPolicy
from runnel.nn.teams import TeamValues

__all__ = [
    "GRU",
    "LSTM",
    "MLP",
    "ActionValues",
    "ActorCritic",
    "AgentPolicy",
    "Bounds",
    "Categorical",
    "Core",
    "Critics",
    "DeterministicPolicy",
    "Gaussian",
    "Head",
    "MinAtarCNN",
    "Mixer",
    "MultiCategorical",
    "NatureCNN",
    "Network",
    "NoisyDense",
    "Prediction",
    "SpaceNetwork",
    "SquashedGaussian",
    "StateValue",
    "StochasticPolicy",
    "TeamValues",
    "bounds_of",
    "head_for",
    "initial_memory",
    "joint_network",
    "network_for",
]
