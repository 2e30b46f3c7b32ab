"""Shared by all tests: their helpers on the Python path, and a place for compiled programs."""

import gc
import os
import sys
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


@pytest.fixture(scope="session", autouse=True)
def _own_state_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs are signed with a key of the tests' own, here and in processes that they start."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module", autouse=True)
def _old_objects_are_not_searched_for_garbage() -> None:
    """What earlier modules have traced and compiled stays: millions of objects, which take seconds to go through."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _a_slow_machine_prints_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run is at is printed where starting takes seconds; what tests compare must not depend on that."""
    monkeypatch.setattr("runnel.system.startup.EVERY_S", 600.0)
