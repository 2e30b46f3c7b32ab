"""What holds a run back, and the one thing to change about it: plain functions over plain numbers.

A worker is busy when it does not wait for another. In an asynchronous run, a worker that is always busy sets the pace;
at a barrier, the times of workers add up, and the longest is the one to shorten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from runnel import distributions
from runnel.graph.kinds import KINDS, NodeKind
from runnel.runtime.usage import FragmentUsage, UsageReport

BUSY: Final = 0.85
"""From this share of its time on a worker counts as always busy: some waiting is there however fast the others are."""

LOST: Final = 0.3
"""The share of the time in which no worker works, from which on synchronisation itself is the cost."""

WORTH: Final = 1.3
"""How many times faster a change should be, by what is known before it is made."""

RESTART_S: Final = 300.0
"""A restart at least this often can be what a run spends its time on."""

NOTHING: Final = "nothing to change"


@dataclass(frozen=True)
class FragmentSetting:
    """A fragment: how many workers it has and the kinds of its nodes."""

    name: str
    replicas: int
    kinds: frozenset[NodeKind]

    @property
    def steps_envs(self) -> bool:
        return "environment" in self.kinds

    @property
    def learns(self) -> bool:
        return any(KINDS[kind].learns for kind in self.kinds)

    @property
    def acts(self) -> bool:
        return "act" in self.kinds

    @property
    def feeds_one_learner(self) -> bool:
        """Whether it makes values that several learners cannot share."""
        return not self.learns and any(KINDS[kind].feeds_one_learner for kind in self.kinds)

    @property
    def computes_gradients(self) -> bool:
        """Whether it computes gradients in a node of their own, which another node applies."""
        return any(KINDS[kind].takes_samples and not KINDS[kind].learns for kind in self.kinds)


@dataclass(frozen=True)
class RunSetting:
    """What a run was given, as far as it could be given more or less of it."""

    flags: Mapping[str, int]  # those its distribution has: actors, inference, learners, env_splits
    fragments: tuple[FragmentSetting, ...]
    envs: int
    column_blocks: int  # that the environments form: learners take equally many
    cpus: int
    gpus: int = 0
    free: bool = False  # workers run ahead of each other
    mixed: bool = False  # some groups wait for their learner, by the layout's choice, and others do not
    max_staleness: int = 0  # what the algorithm tolerates
    host: bool = True  # host environments

    @property
    def workers(self) -> int:
        return sum(fragment.replicas for fragment in self.fragments)

    @property
    def exchanges(self) -> bool:
        """Whether environments ask other workers for every action."""
        return any(fragment.steps_envs and not fragment.acts for fragment in self.fragments)

    def flag(self, fragment: FragmentSetting) -> str | None:
        """The flag that says how many workers of a fragment there are."""
        named = {"actors": fragment.steps_envs, "inference": fragment.acts, "learners": fragment.learns}
        fits = [name for name, meant in named.items() if meant and self.flags.get(name) == fragment.replicas]
        return fits[0] if fits else None

    def spare(self) -> int:
        """CPUs that no worker needs. At a barrier, learners rest while the others step environments."""
        learners = [each for each in self.fragments if each.learns and not each.steps_envs]
        resting = 0 if self.free else sum(each.replicas for each in learners)
        return self.cpus - self.workers + resting

    def allows(self, **flags: int) -> bool:
        """Whether a plan with these flags could be made."""
        now = {**self.flags, **flags}
        actors, learners, inference = now.get("actors", 1), now.get("learners", 1), now.get("inference", 1)
        splits = now.get("env_splits", 1)
        outside = any(fragment.feeds_one_learner for fragment in self.fragments)
        gradients = any(fragment.computes_gradients and not fragment.learns for fragment in self.fragments)
        return (
            min(now.values(), default=1) >= 1
            and self.envs % actors == 0
            and ("env_splits" not in flags or self.envs // actors % splits == 0)
            and self.column_blocks % learners == 0
            and (learners == 1 or "actors" not in now or actors * splits % learners == 0)
            and (learners == 1 or not outside)
            and (learners <= self.gpus or not self.gpus)
            and ("inference" not in now or actors % inference == 0)
            and (not gradients or actors - 1 <= self.max_staleness)
        )


# The sentence


def bottleneck(report: UsageReport, setting: RunSetting, restarts: Mapping[str, int] | None = None) -> str | None:
    """What holds the run back and one thing to do about it; None where too little was seen.

    `restarts`: how often workers were replaced, by the reason.
    """
    if setting.workers == 1:
        phases = report.workers[0].phases if report.workers else {}
        return _in_one_process(phases, setting) if sum(phases.values()) > 0 else None
    shares = {share.fragment: share for share in report.shares()}
    if any(fragment.name not in shares for fragment in setting.fragments):
        return None
    pairs = [(fragment, shares[fragment.name]) for fragment in setting.fragments]
    found, remedy = _restarted(pairs, report, setting, restarts or {}) or _among(pairs, setting)
    return f"{found}: {remedy}"


Seen = Sequence[tuple[FragmentSetting, FragmentUsage]]


def _restarted(
    seen: Seen, report: UsageReport, setting: RunSetting, restarts: Mapping[str, int]
) -> tuple[str, str] | None:
    """Where workers were replaced often and all wait most of the time: more workers would not help."""
    busy = [share.busy for _, share in seen]
    seconds = max(worker.seconds for worker in report.workers)
    times = sum(restarts.values())
    if times * RESTART_S < seconds or not times or (max(busy) if setting.free else sum(busy)) > 0.5:
        return None
    reason = max(restarts, key=lambda each: restarts[each])
    often = "once" if times == 1 else f"{times} times"
    return f"workers were restarted {often}, and wait most of the time ({_busy(seen)})", f"see to why: {reason}"


def _among(seen: Seen, setting: RunSetting) -> tuple[str, str]:
    """Of several workers: what was found, and what to do."""
    load = sum(share.busy * fragment.replicas for fragment, share in seen)
    slowest, most = max(seen, key=lambda pair: pair[1].busy)
    # A worker that exchanges something every step and finds no free CPU looks idle and is not.
    if setting.spare() < 0 and (setting.exchanges or load >= 0.9 * setting.cpus):
        cpus = "1 CPU" if setting.cpus == 1 else f"{setting.cpus} CPUs"
        return f"{setting.workers} workers share {cpus} ({_busy(seen)})", _fit(setting)
    if all(share.busy >= BUSY for _, share in seen):
        found = f"all workers are busy ({_busy(seen)})"
        return found, (_alike(slowest, setting) if len(seen) == 1 else None) or NOTHING
    lost = 1.0 - (most.busy if setting.free else sum(share.busy for _, share in seen))
    if setting.exchanges and lost > (1 - BUSY if setting.free else LOST):
        waits = ", ".join(f"{_who(fragment)} {_wait(share)}" for fragment, share in seen)
        return f"no worker is always busy: {waits}", _overlap(setting)
    others = [pair for pair in seen if pair[0] is not slowest]
    found = f"{_who(slowest)} {_are(slowest)} busy {most.busy:.0%} of the time"
    if others:
        idlest, least = min(others, key=lambda pair: pair[1].busy)
        found += f", {_who(idlest)} {_wait(least)}"
    return found, _relieve(slowest, {fragment.name: share for fragment, share in seen}, setting)


def _alike(fragment: FragmentSetting, setting: RunSetting) -> str | None:
    """Of replicas of everything: they wait for each other inside the gradient step, where it is not measured."""
    if setting.gpus:
        return _more(fragment, setting)
    return (
        f"compare with --distribution {_single(setting)}, in case the all-reduce of gradients costs more than it gains"
    )


def _relieve(slowest: FragmentSetting, shares: Mapping[str, FragmentUsage], setting: RunSetting) -> str:
    """What helps the fragment that sets the pace."""
    others = [share.busy for name, share in shares.items() if name != slowest.name]
    more = _more(slowest, setting, enough=1 / max(others) if setting.free and others and max(others) else math.inf)
    if more:
        return more
    actors = next(fragment for fragment in setting.fragments if fragment.steps_envs)
    if slowest.steps_envs:
        if setting.gpus and setting.free and slowest.acts and not slowest.computes_gradients:
            return f"use --distribution decoupled --actors {actors.replicas}, which acts on the GPU"
        return _run_free(setting) or "use a machine with more CPUs"
    if not setting.free:
        return _run_free(setting) or ("use a GPU" if not setting.gpus else NOTHING)
    larger = f"use --envs {setting.envs * 2}, which makes every call larger"
    busy = shares[actors.name].busy
    if not slowest.learns and slowest.acts:  # with fewer environments its calls would only be smaller
        return _traded(slowest, actors, busy, setting) or (larger if setting.gpus else "use a GPU")
    return _fewer_actors(actors, busy, setting) or (larger if setting.gpus else "use a GPU")


def _more(fragment: FragmentSetting, setting: RunSetting, enough: float = math.inf) -> str | None:
    """More workers of a fragment, where there are CPUs and environments for them, up to `enough` times as many."""
    flag, spare = setting.flag(fragment), setting.spare()
    if flag is None or spare < 1:
        return None
    now = setting.flags[flag]
    if flag == "actors":
        fits = [n for n in range(now + 1, now + spare + 1) if setting.allows(actors=n)]
        chosen = _first(fits, lambda n: n >= now * enough) or (fits[-1] if fits else None)
    else:
        chosen = 2 * now if now <= spare and setting.allows(**{flag: 2 * now}) else None
    return f"use --{flag} {chosen}" if chosen else None


def _fewer_actors(actors: FragmentSetting, busy: float, setting: RunSetting) -> str | None:
    """As many as would be busy all the time: the others take CPUs and make samples staler."""
    if setting.flag(actors) != "actors":
        return None
    fits = range(max(1, math.ceil(actors.replicas * busy)), actors.replicas)
    chosen = _first(fits, lambda n: setting.allows(actors=n))
    return f"use --actors {chosen}, which would not be slower" if chosen else None


def _traded(slowest: FragmentSetting, actors: FragmentSetting, busy: float, setting: RunSetting) -> str | None:
    """More of the fragment that holds the run back, on the CPUs of actors that wait anyway."""
    flag = setting.flag(slowest)
    if flag is None or setting.flag(actors) != "actors":
        return None
    now = setting.flags[flag]
    fits = range(actors.replicas - now, math.ceil(actors.replicas * busy) - 1, -1)
    chosen = _first(fits, lambda n: setting.allows(actors=n, **{flag: 2 * now}))
    return f"use --actors {chosen} --{flag} {2 * now}" if chosen else None


def _fit(setting: RunSetting) -> str:
    """As many workers as there are CPUs, or a distribution that needs fewer."""
    actors, wanted = setting.flags.get("actors"), setting.workers - setting.cpus
    if actors is not None:
        chosen = _first(range(actors - wanted, 0, -1), lambda n: setting.allows(actors=n))
        if chosen:
            return f"use --actors {chosen}"
    learners = setting.flags.get("learners")
    if learners is not None and learners > wanted:
        chosen = _first(range(learners - wanted, 0, -1), lambda n: setting.allows(learners=n))
        if chosen and (actors is not None or chosen > 1):
            return f"use --learners {chosen}"
    if setting.exchanges and setting.free and setting.cpus > 1:
        return f"use --distribution async --actors {_divisor(setting.envs, setting.cpus - 1)}"
    return f"use --distribution {_single(setting)}"


def _single(setting: RunSetting) -> str:
    """The distribution of one process."""
    return distributions.default_for("host" if setting.host else "jax")


def _overlap(setting: RunSetting) -> str:
    """Other environments step while these wait for their actions."""
    splits = setting.flags.get("env_splits")
    if splits is not None and setting.allows(env_splits=2 * splits):
        return f"use --set distribution.env_splits={2 * splits}"
    if splits is not None and setting.envs // setting.flags.get("actors", 1) <= splits:
        return f"use --envs {2 * setting.envs}"
    if setting.mixed:  # by the layout's choice
        return NOTHING
    actors = setting.flags.get("actors", 2)
    return f"use --distribution {'async' if setting.free else 'coarse'} --actors {actors}"


def _run_free(setting: RunSetting) -> str | None:
    """Stepping environments and learning at the same time, where the algorithm tolerates staleness. Not advised where
    the layout says which groups wait."""
    if setting.free or setting.mixed or not setting.max_staleness or setting.cpus < 2:
        return None
    return f"use --distribution async --actors {_divisor(setting.envs, setting.cpus - 1)}"


def _in_one_process(phases: Mapping[str, float], setting: RunSetting) -> str:
    total = sum(phases.values())
    slowest = max(phases, key=lambda name: phases[name])
    if len(phases) == 1:
        where = f"on {setting.gpus} GPUs" if setting.gpus > 1 else f"on the {'GPU' if setting.gpus else 'CPU'}"
        more = f"use --envs {2 * setting.envs}, as long as steps per second grow" if setting.gpus else "use a GPU"
        return f"everything is one XLA program {where}: {more}"
    shares = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in phases.items())
    return f"{slowest} ({shares} of the time): {_in_process_remedy(slowest, phases, setting)}"


def _in_process_remedy(slowest: str, phases: Mapping[str, float], setting: RunSetting) -> str:
    if not setting.host:
        return "use --distribution fused"
    if slowest == "act":
        return f"use --envs {2 * setting.envs}, for which a call costs little more"
    # Several actors share the steps of environments; acting costs a call a step however few they are of.
    total, environment, act, learn = sum(phases.values()), phases["environment"], phases["act"], phases["learn"]
    free, meeting = _divisor(setting.envs, setting.cpus - 1), _divisor(setting.envs, setting.cpus)
    if _run_free(setting) and total >= WORTH * max(environment / free + act, learn):
        return f"use --distribution async --actors {free}"
    if slowest == "environment":
        gains = meeting > 1 and total >= WORTH * (environment / meeting + act + learn)
        return f"use --distribution coarse --actors {meeting}" if gains else NOTHING
    return NOTHING if setting.gpus else "use a GPU"


# Words


def _busy(seen: Seen) -> str:
    return ", ".join(f"{label(each.name, each.replicas)} {share.busy:.0%}" for each, share in seen) + " busy"


def label(fragment: str, replicas: int) -> str:
    return f"{fragment} x{replicas}" if replicas > 1 else fragment


def _who(fragment: FragmentSetting) -> str:
    """`the learner`, `the 4 actors`, `the 2 environment workers`."""
    noun = fragment.name if fragment.name.endswith(("er", "or", "replica")) else f"{fragment.name} worker"
    return f"the {noun}" if fragment.replicas == 1 else f"the {fragment.replicas} {noun}s"


def _are(fragment: FragmentSetting) -> str:
    return "is" if fragment.replicas == 1 else "are"


def _wait(share: FragmentUsage) -> str:
    verb = "waits" if share.replicas == 1 else "wait"
    return f"{verb} {1 - share.busy:.0%}" + (f" (for {share.cause})" if share.cause else "")


def _first(numbers: Iterable[int], fits: Callable[[int], bool]) -> int | None:
    return next((n for n in numbers if fits(n)), None)


def _divisor(envs: int, most: int) -> int:
    """The largest number of workers, up to `most`, that shares the environments evenly."""
    return max((n for n in range(1, most + 1) if envs % n == 0), default=1)
