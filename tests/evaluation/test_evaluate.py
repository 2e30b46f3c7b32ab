"""Playing what was trained: which episodes count, how the policy acts, and films of it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from alternating import Alternates
from hypothesis import given, strategies
from paths import SUPPORT
from reporters import SCALE

from runnel.errors import UserError
from runnel.evaluation.evaluate import SEED_OFFSET, evaluate
from runnel.execution.training import train
from runnel.runtime.single_process.evaluation import AT_A_TIME, quotas


class Lasting(gymnasium.Env):
    """Episodes of 1 to 9 steps, by their seed; the reward is 1 for the action that alternates, 0 first."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.length, self.clock = int(self.np_random.integers(1, 10)), 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        reward = float(action == self.clock % 2)
        self.clock += 1
        return np.zeros(1, np.float32), reward, self.clock == self.length, False, {}

    def render(self) -> Any:
        return np.full((33, 47, 3), 20 * self.clock, np.uint8)


class Blind(Lasting):
    """Cannot be drawn."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_on(f"{__name__}:Lasting", tmp_path_factory.mktemp("run"))


def train_on(
    environment: str, run_dir: Path, algorithm: Any = None, envs: int = 2, steps: int = 16, **settings: Any
) -> Path:
    algorithm = algorithm or Alternates()
    return train(
        algorithm, environment, envs=envs, steps=steps, seed=3, run_dir=run_dir, quiet=True, env_settings=settings
    ).run_dir


def lengths_of(seed: int, count: int, episode: int = 0) -> list[int]:
    """The environment's own results of the first episode of each environment, or of a later one."""
    from runnel.environment import episode_seed

    environment, lengths = Lasting(), []
    for index in range(count):
        environment.reset(seed=episode_seed(seed, index, episode))
        lengths.append(environment.length)
    return lengths


def frames_of(film: Path, height: int, width: int) -> np.ndarray:
    """[N, H, W, 3] as a player would show them."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    command = [ffmpeg, "-i", film, "-f", "rawvideo", "-pix_fmt", "rgb24", "-fps_mode", "passthrough", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)


def test_episode_i_is_the_first_of_environment_i(run: Path) -> None:
    found = evaluate(run, episodes=12, seed=5)
    assert found["lengths"] == lengths_of(5, 12)
    assert len(set(found["lengths"])) > 3
    assert found["mean_length"] == np.mean(found["lengths"])


def test_memory_is_kept_and_nothing_is_explored(run: Path) -> None:
    found = evaluate(run, episodes=12, seed=5)
    assert found["returns"] == found["lengths"]
    assert found["mean_return"] == np.mean(found["returns"])
    assert (found["min_return"], found["max_return"]) == (min(found["returns"]), max(found["returns"]))
    assert json.loads(json.dumps(found)) == found


def test_of_many_episodes_each_environment_plays_the_same_number(run: Path) -> None:
    """Taking those that end first would favour short ones."""
    count = 2 * AT_A_TIME + 1
    found = evaluate(run, episodes=count, seed=5)
    each = lengths_of(5, 43) + lengths_of(5, 43, episode=1) + lengths_of(5, 43, episode=2)
    assert found["lengths"] == each
    assert found["returns"] == each  # memory begins anew in every episode


def test_memory_is_reset_in_every_episode_of_a_jax_environment(tmp_path: Path) -> None:
    run = train_on("alternating:Beats", tmp_path / "run", envs=8, steps=32)
    found = evaluate(run, episodes=2 * AT_A_TIME, seed=5)
    assert found["returns"] == found["lengths"]
    assert set(found["lengths"]) == {3.0}


@given(episodes=strategies.integers(1, 5000))
def test_quotas_are_as_equal_as_they_can_be(episodes: int) -> None:
    found = quotas(episodes)
    assert sum(found) == episodes
    assert len(found) <= AT_A_TIME
    assert max(found) - min(found) <= 1
    assert found == sorted(found, reverse=True)


def test_without_a_seed_the_episodes_are_not_those_of_training(run: Path) -> None:
    found = evaluate(run, episodes=3)
    assert found["seed"] == 3 + SEED_OFFSET
    assert found["lengths"] == lengths_of(found["seed"], 3)


def test_it_says_which_policy_it_played(run: Path, tmp_path: Path) -> None:
    found = evaluate(run, episodes=1)
    assert found["policy"] == str(run / "policies" / "group-agent" / f"{2:012d}")
    assert (found["version"], found["env_steps"]) == (2, 16)
    assert (found["algorithm"], found["environment"]) == ("alternates", f"{__name__}:Lasting")
    older = shutil.copytree(run, tmp_path / "older", symlinks=True)
    shutil.rmtree(older / "policies")
    found = evaluate(older, episodes=1)
    assert found["policy"] == str((older / "checkpoints" / "latest").resolve())
    assert (found["version"], found["env_steps"]) == (2, 16)


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_a_film_shows_the_first_episode(run: Path, kind: str, tmp_path: Path) -> None:
    film = tmp_path / f"episode.{kind}"
    found = evaluate(run, episodes=3, seed=5, video=film)
    assert found["lengths"] == lengths_of(5, 3)
    frames = frames_of(film, 32, 46)
    assert len(frames) == found["lengths"][0]
    assert np.all(np.diff(frames.mean((1, 2, 3))) > 5)  # time passes
    assert [path.name for path in tmp_path.iterdir()] == [film.name]


def test_registered_environments_can_be_filmed(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    run = train_on("CartPole-v1", tmp_path / "run")
    evaluate(run, episodes=1, video=tmp_path / "episode.mp4")
    assert (tmp_path / "episode.mp4").stat().st_size > 1000


def test_jax_environments_are_played_step_by_step(tmp_path: Path) -> None:
    from toys import Reinforce

    run = train_on("toys:Corridor", tmp_path / "run", Reinforce(), envs=8)  # 8: it trains on any number of devices
    found = evaluate(run, episodes=5, seed=1)
    assert all(1 <= length <= 20 for length in found["lengths"])
    assert len(set(found["returns"])) > 1
    with pytest.raises(UserError, match="corridor cannot be rendered"):
        evaluate(run, video=tmp_path / "film.mp4")
    assert not list(tmp_path.glob("*film*"))


@pytest.mark.parametrize("environment", ["Darts", "TracedDarts"])
def test_metrics_and_the_environments_own_score_are_reported(environment: str, tmp_path: Path) -> None:
    played = evaluate(train_on(f"reporters:{environment}", tmp_path, scores=1), episodes=5)
    assert played["mean_return"] == pytest.approx(SCALE * played["learner_return"])
    assert all(value % SCALE == 0 for value in played["returns"])
    assert played["mean_length"] == pytest.approx(10 * played["env"]["throws"])  # its own length, beside its score
    assert played["env"]["total"] == pytest.approx(played["learner_return"])
    assert 0 <= played["env"]["is_success"] <= 1
    assert not {"return", "length"} & played["env"].keys()


def test_a_game_is_played_to_its_end_though_learning_sees_its_lives(tmp_path: Path) -> None:
    played = evaluate(train_on("ALE/Breakout-v5", tmp_path, life_loss=True, max_frames=800), episodes=2)
    assert all(length > 100 for length in played["lengths"])  # with nobody there a ball is lost in 24, and there are 5


def test_a_script_named_from_where_one_stood_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SUPPORT)
    train(
        "reinforce", "toys.py:Corridor", envs=2, steps=64, run_dir=tmp_path / "run", settings={"unroll": 8}, quiet=True
    )
    monkeypatch.chdir(tmp_path)
    assert evaluate(tmp_path / "run", episodes=2)["episodes"] == 2


def test_groups_of_agents_have_returns_of_their_own(tmp_path: Path) -> None:
    from toys import Drift

    run_dir = train_on("toys:Tag", tmp_path / "run", Drift(), envs=8, steps=160)
    told = json.loads((run_dir / "result.json").read_text())
    assert told["mean_return"] == pytest.approx(np.mean(list(told["group_returns"].values())))
    found = evaluate(run_dir, episodes=3)
    assert set(found["group_returns"]) == set(told["group_returns"]) == {"hunter", "runners"}
    assert found["lengths"] == [10, 10, 10]
    assert found["mean_return"] == pytest.approx(np.mean(list(found["group_returns"].values())))


@pytest.fixture
def blind(tmp_path: Path) -> Iterator[Path]:
    yield train_on(f"{__name__}:Blind", tmp_path / "blind")
    assert [path.name for path in tmp_path.iterdir()] == ["blind"]


def test_mistakes_are_reported_before_anything_is_played(blind: Path, tmp_path: Path) -> None:
    for arguments, message in [
        ({"episodes": 0}, "episodes=0: found 0, expected 1 or more"),
        ({"video": tmp_path / "film.avi"}, "found ending '.avi', expected .mp4 or .gif"),
        ({"video": tmp_path / "nowhere" / "film.mp4"}, "cannot write into"),
        ({"video": tmp_path / "film.mp4"}, "cannot be rendered"),
    ]:
        with pytest.raises(UserError) as error:
            evaluate(blind, **arguments)
        assert message in str(error.value)


def test_a_directory_without_a_run_or_a_checkpoint_is_refused(tmp_path: Path, run: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        evaluate(tmp_path)
    (tmp_path / "config.json").write_text((run / "config.json").read_text())
    with pytest.raises(UserError, match="has no checkpoint"):
        evaluate(tmp_path)


def test_missing_ffmpeg_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"pip install 'runnel\[video\]'"):
        evaluate(run, video=tmp_path / "film.mp4")
