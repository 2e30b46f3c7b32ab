"""Shared by all tests: their helpers on the Python path, and a place for compiled programs."""

import ctypes
import gc
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))

# A machine that only says yes or no must say the same twice; a person's may look further each time.
settings.register_profile("repeatable", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--transport", metavar="package.module:NAME", help="run tests/transport against this transport alone"
    )


SLOW_VARIANTS = Path(__file__).parent / "slow_variants.txt"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests of slow_variants.txt; they are there by whole ids."""
    listed = {line for line in SLOW_VARIANTS.read_text().splitlines() if line and not line.startswith("#")}
    root = Path(__file__).parent.parent
    for item in items:
        name = item.nodeid.removeprefix(f"{root}/")
        if name in listed:
            item.add_marker(pytest.mark.slow)
            listed.discard(name)
    if listed and config.args == config.getini("testpaths"):  # the whole suite
        raise pytest.UsageError(f"{SLOW_VARIANTS.name} names {len(listed)} tests that there are not: {min(listed)}")


@pytest.fixture(scope="session", autouse=True)
def _own_state_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs are signed with a key of the tests' own, here and in processes that they start."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


gc.set_threshold(50_000, 20, 50)  # tracing makes millions of objects that live on, and searching them takes seconds
MOST_MEMORY_BYTES = 2_500_000_000  # several test processes share the machine


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_fit_into_memory() -> Iterator[None]:
    """What is traced and compiled is not searched for garbage, and is dropped all at once where it is too much."""
    gc.freeze()
    yield
    if resident_bytes() > MOST_MEMORY_BYTES and "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.unfreeze()
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # of tests that ended long ago
            gc.collect()
        return_free_memory()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def return_free_memory() -> None:
    """To the operating system; the C library keeps it."""
    ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True)
def _a_slow_machine_prints_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run is at is printed where starting takes seconds; what tests compare must not depend on that."""
    monkeypatch.setattr("runnel.system.startup.EVERY_S", 600.0)


@pytest.fixture(scope="session")
def _trained_members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from toys import Reinforce

    import runnel

    directory = tmp_path_factory.mktemp("members") / "runs"
    runnel.train_members(
        Reinforce, "gymnax:CartPole-v1", seeds=2, variants=[{"learning_rate": 1e-3}, {"learning_rate": 1e-2}],
        steps=400, envs=4, eval_every=200, eval_episodes=2, run_dir=directory, quiet=True,
    )  # fmt: skip
    return directory


@pytest.fixture
def members_dir(_trained_members: Path, tmp_path: Path) -> Path:
    """A copy of a directory of four members: REINFORCE with two learning rates, seeds 0 and 1, evaluated."""
    return Path(shutil.copytree(_trained_members, tmp_path / "members", symlinks=True))


@pytest.fixture(scope="session")
def played_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on rock-paper-scissors against past policies: a decision and a snapshot at every 64 of 1024 steps."""
    import runnel
    from runnel.algorithms.ppo import PPO

    directory = tmp_path_factory.mktemp("played") / "run"
    runnel.train(
        PPO(unroll=8, epochs=1, minibatches=1, hidden=(8,), learning_rate=0.05), "matrix:rock_paper_scissors",
        opponents=runnel.PFSP(every=64, places=2), envs=8, steps=1024, run_dir=directory, quiet=True,
    )  # fmt: skip
    return directory
