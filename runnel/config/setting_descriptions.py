"""Descriptions of the settings that several algorithms or distributions share: effect, unit and usual range.

A comment or docstring beside a field replaces the text here. Only Runnel's own classes take these texts: a field of the
same name in a user's class may mean something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ALGORITHMS: Final[Mapping[str, str]] = {
    "activation": "activation function after each hidden layer of the default network",
    "advantages": "vtrace corrects for actors that lag, gae does not; auto: vtrace where they may",
    "baseline": "subtract a learnt value from the returns: less variance of the gradient, the same mean",
    "batch": "transitions per update, drawn from the replay; usual: 32 to 512",
    "capacity": "transitions that the replay holds, the oldest replaced first; all memory is allocated at the start",
    "clip": "how far the ratio of new to old action probability may leave 1 and still gain; usual: 0.1 to 0.3",
    "discount": "how much a reward counts that comes one step later (gamma), 0 to 1; usual: 0.95 to 0.999",
    "double": "the online network chooses the next action and the target network values it: overestimates less",
    "dual_clip": "most that a bad action can cost, in multiples of its advantage; usual: 3; none: no limit",
    "dueling": "the network has separate streams for the value of the state and the advantages of actions",
    "entropy_cost": "weight of the entropy bonus in the loss: more explores more; usual: 0 to 0.05",
    "epochs": "passes over each unroll: more learns more per step, and less stably if too many; usual: 3 to 10",
    "epsilon_end": "lowest probability of a random action, after `epsilon_steps`; usual: 0.01 to 0.1",
    "epsilon_spread": "environment i has epsilon to a power from 1 to 1 + this (Ape-X: 7); 0: all have the same",
    "epsilon_start": "first probability of a random action; usual: 1",
    "epsilon_steps": "environment steps, from the first update on, over which epsilon falls to `epsilon_end`",
    "gae_lambda": "0: advantages from the value one step ahead (biased); 1: from returns (noisy); usual: 0.9 to 1",
    "hidden": "units of each hidden layer of the default network; of images, of the layers after the convolutions",
    "importance_exponent": "correction for drawing by priority, 0 (none) to 1 (full); only with `prioritised`",
    "learning_rate": "step size of the optimiser; usual: 1e-4 to 1e-3, less for larger networks",
    "max_grad_norm": "longest gradient, by global norm; a longer one is scaled down; usual: 0.5 to 10",
    "memory": "recurrent cell after the network; none: the policy sees one observation alone",
    "memory_size": "units of the recurrent cell; usual: 64 to 512",
    "min_size": "transitions in the replay before learning begins",
    "minibatches": "parts of an unroll in each epoch, one gradient step each; must divide its steps; usual: 1 to 32",
    "n_step": "steps of reward before the value is used, no more than `unroll`; usual: 1 to 5",
    "network": "a network, or package.module:name; none: chosen by the kind of observation",
    "noise": "standard deviation of exploration noise, where actions reach from -1 to 1; usual: 0.05 to 0.3",
    "noisy": "noise in the layers after the network, which learns how much to explore",
    "normalise_advantages": "scale the advantages of each unroll to mean 0 and deviation 1",
    "normalise_observations": "scale observations by their running mean and deviation; helps where they are not near 1",
    "normalise_returns": "scale rewards by the running deviation of returns; helps where rewards are large or small",
    "optimiser": "which optimiser takes the gradient steps",
    "popart": "learns values of any scale as if theirs were 1",
    "prioritised": "draw transitions by their last error instead of uniformly",
    "reuses": "times an unroll may be learnt from, under asynchronous distributions, while it is not too old",
    "samples_per_insert": "how often each transition is drawn, on average; usual: 1 to 32",
    "scan_unroll": "minibatches compiled side by side: faster on a GPU, longer to compile; usual: 1 to 8",
    "staleness": "most updates that a sample may lag, under asynchronous distributions; 0 with gae; usual: 1 to 4",
    "target_period": "updates between copies of the network to its target; more: stabler, slower; usual: 100 to 10000",
    "tau": "share of the way to the networks that their targets go in each update; usual: 0.001 to 0.01",
    "value_clip": "most that a value may change in an update and still gain; usual: 0.2; none: no limit",
    "value_cost": "weight of the value's loss beside the policy's; usual: 0.25 to 1",
}

DISTRIBUTIONS: Final[Mapping[str, str]] = {
    "actors": "processes that step the environments, each a share of --envs; usual: one per core beside the learner",
    "env_splits": "blocks of each worker's environments: one steps while another waits for actions; usual: 1 to 4",
    "inference_deadline_us": "microseconds that a request waits for those of other blocks; none: not at all",
    "inference": "processes that compute the actions of all environment workers, on a device each",
    "prefetch": "a learner on a GPU copies the next unrolls to it during the update; off: to measure what that gains",
    "learners": "processes that share the learning, each a part of every batch; usual: one per GPU",
}

ENVIRONMENTS: Final[Mapping[str, str]] = {
    "active": "observations have a part `active`; none: where agents take turns, or may die or arrive",
    "backend": "physics of Brax: generalized, spring (fastest, least exact), positional or mjx",
    "boxes": "number of boxes; none: as the game draws it",
    "continuous_actions": "actions are real numbers instead of choices",
    "episode_length": "steps after which an episode is cut",
    "frame_skip": "frames per step, in which the action is repeated",
    "frame_stack": "observations that are shown at once, the newest last; usual: 1 to 4",
    "groups": "kind: agents with equal spaces and names share a policy; each: one policy per agent; one: one for all",
    "hiders": "number of hiders; none: as the game draws it",
    "horizon": "steps of an episode; none: as the game has it",
    "learning_seats": "seats of a symmetric game that learn; past policies or opponents sit on the others; usual: 1",
    "lineups": "which groups play the roles of a game, by line-up: `[[row, column], [row, column-past]]`",
    "max_cycles": "rounds of all agents after which an episode is cut",
    "max_episode_steps": "steps after which an episode is cut",
    "max_steps": "steps after which an episode is cut; none: played to its end",
    "max_steps_in_episode": "steps after which an episode is cut",
    "observe": "what a player sees: observation or information_state; none: what the game has",
    "preparation": "steps in which seekers cannot act and no agent is rewarded; none: as the game has it",
    "ramps": "number of ramps; none: as the game has it",
    "repeat_action_probability": "the chance that a step repeats the action before it; 0.25 is usual of Atari",
    "rounds": "rounds of an episode; players see the last moves",
    "seekers": "number of seekers; none: as the game draws it",
    "shaping": "weight of JaxMARL's rewards on the way to the goal, where an environment has such; 0: none",
    "state": "observations have a part `state` with the state of the whole environment, as MAPPO and QMIX need it",
}
"""Settings of Runnel's adapters, and of libraries that do not describe theirs."""


def defaults_of(module: str) -> Mapping[str, str]:
    """The descriptions that a class of this module has for fields which it does not describe itself."""
    if module.startswith("runnel.algorithms."):
        return ALGORITHMS
    return DISTRIBUTIONS if module.startswith("runnel.distributions.") else {}
