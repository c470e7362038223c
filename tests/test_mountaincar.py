"""Noisy Mountain Car against Gymnasium's and its own noise, and what is the car's own in the script."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import ptsbe_ppo_mountaincar as mc


def test_environment_passes_gymnasiums_check():
    check_env(mc.make_env(mc.Args())[0], skip_render_check=True)


def test_without_noise_it_is_gymnasiums_in_units_of_the_box():
    ours, theirs = mc.make_env(mc.Args(noise="none"))[0], gym.make("MountainCar-v0").unwrapped
    ours.reset(seed=3)
    theirs.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(300):
        action = int(rng.integers(3))
        (state, reward, *_), (expected, *_) = ours.step(action), theirs.step(action)
        np.testing.assert_allclose(state, mc.scaled(expected), atol=1e-4)
        assert reward == -1 and (np.abs(state) <= 1).all()


@pytest.mark.parametrize("noise, position, factor", [("homoskedastic", 0.2, 1), ("heteroskedastic", -np.pi / 6, 2)])
def test_noise_has_the_stated_size(noise, position, factor):
    env = mc.NoisyMountainCar(noise)
    env.reset(seed=0)
    ends = []
    for _ in range(4000):
        env.state = np.array([position, 0.0])
        ends.append(env.step(1)[0])
    expected = mc.NoisyMountainCar.dynamics(np.array([position, 0.0]), 1)
    np.testing.assert_allclose(np.mean(ends, 0), expected, atol=4e-4)
    np.testing.assert_allclose(np.std(ends, 0), factor * env.SIGMA, rtol=0.05)


def test_visits_measure_cells_positions_and_the_first_return():
    _, visits = mc.make_env(mc.Args())
    assert visits.reachable.sum() == 317
    visits.add(np.array([[-0.5, 0.0]], np.float32), 0)
    visits.add(np.array([[0.0, 0.0]], np.float32), 1)
    assert visits.metrics()["first_return"] == -1
    visits.add(np.array([[0.95, 0.0]], np.float32), 2, True)
    visits.add(np.array([[-0.5, 0.0]], np.float32), 7)
    metrics = visits.metrics()
    assert metrics["solved_step"] == 2 and metrics["first_return"] == -2 and 2 <= 317 * metrics["coverage"] <= 3
    assert metrics["position_range"] == pytest.approx(0.725)


def test_goal_is_noticed_and_the_run_goes_on(in_tmp, monkeypatch):
    monkeypatch.setattr(mc.NoisyMountainCar, "GOAL", -0.45)
    result = mc.main(mc.Args(method="random", total_timesteps=200, run_name="test", seed=1001))
    assert result["solved"] and 1 <= result["solved_step"] < 200 and result["steps"] == 200


def test_the_end_of_an_episode_is_learned():
    """Where cars arrived the model expects an end, and nowhere else."""
    torch.manual_seed(0)
    model = mc.PriorEnsemble(5, 4, mc.Args())
    states, actions = 2 * torch.rand(600, 2) - 1, torch.eye(3)[torch.randint(3, (600,))]
    ended = (states[:, 0] > 0.8).float()
    y = torch.stack([0.02 * states[:, 1], 0.01 * actions[:, 0], -torch.ones(600), ended], 1)
    for _ in range(3):
        model.fit(torch.cat([states, actions], 1), y, 300)
    end = model.predict(torch.tensor([[0.95, 0.3, 0, 0, 1.0], [0.0, 0.0, 0, 1.0, 0]]))[0][..., -1].mean(0)
    assert end[0] > 0.7 and end[1].abs() < 0.2


def test_pts_be_reaches_the_goal_where_random_does_not(in_tmp):
    """The main claim on one seed, while a random policy has never been seen to arrive in 1000 steps."""
    assert mc.main(mc.Args(seed=1021, run_name="a", total_timesteps=700))["solved"]
    assert not mc.main(mc.Args(seed=1021, run_name="b", total_timesteps=700, method="random"))["solved"]
