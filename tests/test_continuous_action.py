"""Any Gymnasium environment: spaces, units, rewards, visits, and that every environment with Boxes runs."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from test_scripts import refused, short

import ptsbe_sac_continuous_action as ca

CLASSIC = ["MountainCarContinuous-v0", "Pendulum-v1"]
ROBOTS = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum")
MUJOCO = [f"{name}-v5" for name in (*ROBOTS, "Pusher", "Reacher", "Swimmer", "Walker2d")]
BOX2D = ["BipedalWalker-v3", "LunarLanderContinuous-v3", "CarRacing-v3"]


class Drift(gym.Env):
    """A dictionary of a bounded place and an unbounded speed; +10 for every step beyond 3, -2 elsewhere."""

    observation_space = gym.spaces.Dict(
        {"place": gym.spaces.Box(0.0, 4.0, (1,)), "speed": gym.spaces.Box(-np.inf, np.inf, (2,))}
    )
    action_space = gym.spaces.Box(-0.5, 0.5, (1,))

    def seen(self):
        speed = 100 + 20 * self.np_random.standard_normal(2)
        return {"place": np.array([self.place], np.float32), "speed": speed.astype(np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 2.0
        return self.seen(), {}

    def step(self, action):
        assert self.action_space.contains(np.asarray(action, np.float32))
        self.place = float(np.clip(self.place + action[0], 0, 4))
        return self.seen(), 10.0 if self.place > 3 else -2.0, False, False, {}


class Choice(Drift):
    action_space = gym.spaces.Discrete(3)


class Unbounded(Drift):
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,))


class Stuck(Drift):
    action_space = gym.spaces.Box(np.float32([0.5]), np.float32([0.5]))


class Grid(Drift):
    action_space = gym.spaces.Box(-0.5, 0.5, (2, 2))


class Constant(Drift):
    """One variable has a Box of width 0."""

    observation_space = gym.spaces.Box(np.float32([0, 7]), np.float32([4, 7]))

    def seen(self):
        return np.array([self.place, 7], np.float32)


for entry in (Drift, Choice, Unbounded, Stuck, Grid, Constant):
    gym.register(f"{entry.__name__}-v0", entry, max_episode_steps=50)
gym.register("Endless-v0", Drift)


def run(**changes):
    return ca.main(short(ca, **changes))


@pytest.mark.parametrize("env_id", CLASSIC + MUJOCO + BOX2D)
def test_every_environment_with_boxes_runs(in_tmp, env_id):
    try:
        gym.make(env_id).close()
    except gym.error.DependencyNotInstalled:
        pytest.skip("its package is not installed")
    if env_id == "CarRacing-v3":
        pytest.skip("27,648 pixels are no state")
    result = run(env_id=env_id, total_timesteps=300, policy_updates=1, model_updates=1, rollouts=5, horizon=3)
    assert result["steps"] == 300 and 0 < result["coverage"] <= 1 and result["env"] == env_id


@pytest.mark.parametrize(
    "env_id, message",
    [
        ("CartPole-v1", "its actions are Discrete(2)"),
        ("MountainCar-v0", "its actions are Discrete(3)"),
        ("Acrobot-v1", "its actions are Discrete(3)"),
        ("FrozenLake-v1", "its states are Discrete(16)"),
        ("Blackjack-v1", "its states are Tuple(Discrete(32)"),
        ("Choice-v0", "its actions are Discrete(3)"),
        ("Unbounded-v0", "that of actions with bounds"),
        ("Stuck-v0", "its actions are Box(0.5, 0.5, (1,)"),
        ("Grid-v0", "its actions are Box(-0.5, 0.5, (2, 2)"),
        ("Nothing-v0", "doesn't exist"),
        ("no_such_package:Thing-v0", "No module named 'no_such_package'"),
    ],
)
def test_other_spaces_and_names_are_refused_in_one_line(in_tmp, capsys, env_id, message):
    error = refused(capsys, lambda: run(env_id=env_id))
    assert f"--env-id {env_id}: " in error and message in error and not list(in_tmp.iterdir())


@pytest.mark.parametrize("env_id", ["Constant-v0", "Endless-v0"])
def test_odd_environments_run_and_their_evaluation_ends(in_tmp, env_id):
    result = run(env_id=env_id, eval_episodes=1, method="sac", policy_updates=1)
    assert result["steps"] == 160 and np.isfinite(result["eval_return"])


def test_variables_that_are_not_there_are_refused(in_tmp, capsys):
    for changes in (
        {"position_dims": 3},
        {"coverage_dims": (0, 2)},
        {"coverage_dims": (0,)},
        {"coverage_dims": (-1, 0)},
    ):
        refused(capsys, lambda changes=changes: run(**changes))
    assert not list(in_tmp.iterdir())


def test_dictionaries_are_flattened_and_units_are_of_the_box_or_of_the_warmup(in_tmp):
    env, _ = ca.make_env(ca.Args(env_id="Drift-v0", warmup_steps=400))
    assert env.observation_space.shape == (3,)
    state, _ = env.reset(seed=1)
    assert state.dtype == np.float32 and state[0] == 0  # the middle of 0 to 4
    states = np.stack([env.step(env.action_space.sample())[0] for _ in range(49)])
    assert np.abs(states[:, 0]).max() <= 1
    assert np.abs(states[:, 1:].mean(0)).max() < 0.5 and np.abs(states[:, 1:].std(0) - 1).max() < 0.4


def test_the_warmup_is_the_one_that_was_rehearsed():
    """Over its steps, which episodes part, unbounded variables have mean 0 and deviation 1 to rounding."""
    args = ca.Args(env_id="Drift-v0", warmup_steps=120, action_repeat=2, seed=7)
    for _ in range(2):  # an environment made again, as for evaluation, has the same units
        env, visits = ca.make_env(args)
        assert visits.steps == 0 and visits.solved_step is None
        env.reset(seed=args.seed)
        states = []
        while visits.steps < 120:
            *_, truncated, info = env.step(env.action_space.sample())
            states.append(info["path"])
            if truncated:
                env.reset()
        states = np.concatenate(states)
        np.testing.assert_allclose(states[:, 1:].mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(states[:, 1:].std(0), 1, atol=1e-5)


def test_actions_are_rescaled_and_held():
    env, _ = ca.make_env(ca.Args(env_id="Drift-v0", action_repeat=3))
    env.reset(seed=0)
    state, reward, *_, info = env.step(np.array([1.0], np.float32))  # 0.5 three times, from 2
    assert state[0] == pytest.approx(0.75) and reward == pytest.approx(-2 - 2 + 10) and len(info["path"]) == 3


def test_true_rewards_are_reported_and_the_first_that_pays_is_kept(in_tmp):
    result = run(env_id="Drift-v0", method="random", total_timesteps=500)
    path = np.load("runs/test/path.npy")
    assert len(path) == 500 + 1 + 10  # ten episodes, of which the last has ended too
    assert result["solved"] and result["episodic_return"] % 2 == 0
    again = run(env_id="Drift-v0", method="random", total_timesteps=result["solved_step"] - 1, run_name="before")
    assert not again["solved"] and again["episodic_return"] == -2 * again["steps"]


def test_rewards_of_any_size_are_worth_about_1(monkeypatch):
    """The largest reward is the unit of imagined returns and of real ones."""
    args = ca.Args(gamma=0.5, temperature=1e-20)

    class Rich(torch.nn.Module):
        out_scale, seen = ca.Standardizer(4), torch.tensor([[-9.0, -9.0, -400.0, 0.0], [9.0, 9.0, 100.0, 0.0]])

        def predict(self, x):
            return torch.tensor([0.0, 0.0, 100.0, 0.0]).expand(1, len(x), 4), torch.zeros(1, len(x), 4)

    monkeypatch.setattr(ca.SAC, "value", lambda self, state: torch.zeros(len(state)))
    *_, returns = ca.imagine(ca.SAC(2, 1, args), Rich(), torch.zeros(3, 2), 1, 0.0, args)
    assert returns.tolist() == [0.25] * 3


def test_coverage_is_the_share_of_a_grid_over_two_variables_or_of_a_projection(in_tmp):
    _, visits = ca.make_env(ca.Args(env_id="MountainCarContinuous-v0", coverage_dims=[0, 1]))
    grid = (
        np.stack(np.meshgrid(np.linspace(-1, 1, 40), np.linspace(-1, -0.01, 40)), -1).reshape(-1, 2).astype(np.float32)
    )
    visits.add(grid, 1)
    assert visits.metrics()["coverage"] == pytest.approx(0.5, abs=0.05)
    assert visits.metrics()["cells"] == visits.visited.sum()
    _, projected = ca.make_env(ca.Args(env_id="HalfCheetah-v5"))
    projected.add(np.random.default_rng(0).normal(size=(500, 17)), 1)
    assert 0.02 < projected.metrics()["coverage"] < 0.5
    assert projected.probes().shape == (500, 17 + 6)
    picture = projected.picture("a title", np.linspace(0, 2, 500))
    assert picture.shape == (730, 640, 3) and (np.abs(picture - ca.Visits.HOT).max(-1) < 5).any()


def test_sparse_tasks_pay_only_where_they_are_solved():
    for name, length in (("SparsePendulum-v0", 200), ("SparseReacher-v0", 50)):
        env = gym.make(f"benchmark.sparse_envs:{name}")
        env.reset(seed=0)
        rewards = set()
        for count in range(length):
            if name == "SparsePendulum-v0" and count == 20:
                env.unwrapped.state = np.array([0.0, 0.0])
            _, reward, terminated, truncated, _ = env.step(np.zeros(env.action_space.shape))
            rewards.add((reward, count >= 20))
            assert not terminated
        assert truncated and {reward for reward, _ in rewards} <= {0.0, 1.0}
        if name == "SparsePendulum-v0":
            assert (0.0, False) in rewards and (1.0, False) not in rewards and (1.0, True) in rewards


def test_evaluation_has_the_units_of_the_run(in_tmp):
    result = run(env_id="Drift-v0", eval_episodes=2)
    assert -100 <= result["eval_return"] <= 500 and json.loads(Path("runs/test/result.json").read_text()) == result
