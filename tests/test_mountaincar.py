"""Noisy Mountain Car: the environment against its definition, the parts of PTS-BE, and every method for a short run."""

import json
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import combinations
from gymnasium.utils.env_checker import check_env

import ptsbe_ppo_mountaincar as mc

NOISES = ("homoskedastic", "heteroskedastic", "none")


def short(**changes):
    """A run of 200 steps with small networks, long enough for every part to act several times."""
    sizes = {"total_timesteps": 200, "horizon": 12, "rollouts": 4, "policy_updates": 4, "model_updates": 5}
    more = {"gp_updates": 2, "inducing_points": 16, "model_width": 16, "run_name": "test", "seed": 1001}
    return mc.Args(**{**sizes, **more, **changes})


# --------------------------------------------------------------------------------------------------------- environment


@pytest.mark.parametrize("noise", NOISES)
def test_environment_passes_gymnasiums_check(noise):
    check_env(mc.NoisyMountainCar(noise), skip_render_check=True)


def test_without_noise_it_is_gymnasiums_mountain_car():
    ours, theirs = mc.NoisyMountainCar("none"), gym.make("MountainCar-v0", max_episode_steps=10_000).unwrapped
    ours.reset(seed=3)
    theirs.reset(seed=3)
    rng, ended = np.random.default_rng(0), False
    for _ in range(2000):
        along = 2 if ours.state[1] >= 0 else 0  # pumping reaches walls and goal
        action = along if rng.random() < 0.7 else int(rng.integers(3))
        a, b = ours.step(action), theirs.step(action)
        np.testing.assert_allclose(a[0], b[0], atol=1e-6)
        assert a[1:4] == b[1:4]
        theirs.state = tuple(np.asarray(ours.state))  # rounding must not add up
        if a[2]:
            ended = True
            ours.reset(seed=4)
            theirs.reset(seed=4)
    assert ended


def draws(noise, state, count=4000):
    env = mc.NoisyMountainCar(noise)
    env.reset(seed=0)
    mean = env.dynamics(np.array(state), 1)
    outcomes = []
    for _ in range(count):
        env.state = np.array(state)
        outcomes.append(np.asarray(env.step(1)[0], dtype=np.float64) - mean)
    return np.array(outcomes)


@pytest.mark.parametrize("state", [(-0.5, 0.0), (0.0, 0.0), (0.1, 0.05), (-0.9, -0.03)])
@pytest.mark.parametrize("noise", ["homoskedastic", "heteroskedastic"])
def test_noise_is_gaussian_with_the_stated_deviation(noise, state):
    factor = 1.0
    if noise == "heteroskedastic":
        factor = 0.5 + abs(state[1]) / 0.07 + 1.5 * math.exp(-0.5 * ((state[0] + math.pi / 6) / 0.15) ** 2)
    sigma = factor * np.array([0.003, 0.0003])
    standardised = draws(noise, state) / sigma
    assert np.abs(standardised.mean(0)).max() < 5 / math.sqrt(4000)
    np.testing.assert_allclose(standardised.std(0), 1, atol=0.06)
    np.testing.assert_allclose((np.abs(standardised) < 1).mean(0), 0.683, atol=0.04)


def test_heteroskedastic_noise_grows_with_speed_and_near_the_bottom():
    env = mc.NoisyMountainCar("heteroskedastic")
    bottom = -math.pi / 6
    assert (env.sigma(np.array([bottom, 0.0])) > 2 * env.sigma(np.array([0.3, 0.0]))).all()
    speeds = [env.sigma(np.array([0.0, v]))[0] for v in (0.0, 0.02, 0.05, 0.07)]
    assert speeds == sorted(speeds) and speeds[-1] > 2 * speeds[0]


def test_run_ends_only_at_the_goal():
    env = mc.NoisyMountainCar("homoskedastic")
    env.reset(seed=0)
    for _ in range(1000):  # longer than Gymnasium's limit of 200
        assert env.step(1)[2:4] == (False, False)
    env.state = np.array([0.49, 0.07])
    assert env.step(2)[2]


def test_coverage_counts_reachable_cells_only():
    grid = mc.CoverageGrid()
    assert grid.coverage() == 0
    cells = np.argwhere(grid.reachable)
    assert 0.5 < len(cells) / grid.reachable.size < 1
    centres = grid.centres().reshape(*grid.BINS, 2)
    for cell in cells[:10]:
        grid.visit(centres[tuple(cell)])
    assert grid.coverage() == pytest.approx(10 / len(cells))
    for cell in np.argwhere(~grid.reachable):
        grid.visit(centres[tuple(cell)])
    assert grid.coverage() == pytest.approx(10 / len(cells))


# --------------------------------------------------------------------------------------------------------------- parts


def test_gae_equals_the_sum_it_abbreviates():
    torch.manual_seed(0)
    rewards, values, next_values = torch.randn(3, 9, 2).unbind(0)
    terminated = torch.zeros(9, 2)
    terminated[4, 0] = 1
    ours = mc.gae(rewards, values, next_values, terminated, gamma=0.9, gae_lambda=0.7)
    delta = rewards + 0.9 * next_values * (1 - terminated) - values
    for n in range(2):
        for t in range(9):
            expected, weight = 0.0, 1.0
            for k in range(t, 9):
                expected += weight * delta[k, n]
                weight *= 0.9 * 0.7 * (1 - terminated[k, n])
            assert float(ours[t, n]) == pytest.approx(float(expected), abs=1e-5)


def policy_and(dynamics="de", **changes):
    torch.manual_seed(0)
    args = short(dynamics=dynamics, **changes)
    env = mc.NoisyMountainCar("homoskedastic")
    policy = mc.PPO(env.observation_space, env.action_space, args)
    model = mc.DeepEnsemble(5, 3, width=16) if dynamics == "de" else mc.SparseGP(5, 3, 16, 0.05)
    x = torch.rand(64, 5) * 0.1
    model.fit(x, torch.cat([x[:, :2], -torch.ones(64, 1)], 1), steps=3)
    return env, policy, model


@pytest.mark.parametrize("dynamics", ["de", "gp"])
def test_imagined_rollouts_have_the_stated_shapes_and_stay_in_the_box(dynamics):
    env, policy, model = policy_and(dynamics)
    start = torch.tensor([-0.5, 0.0])
    (states, actions, rewards, next_states, ended), mean, var = mc.imagine(policy, model, start, 4, 30, math.inf)
    assert states.shape == next_states.shape == (30, 4, 2)
    assert actions.shape == rewards.shape == ended.shape == (30, 4)
    members = (5,) if dynamics == "de" else ()
    assert mean.shape == var.shape == (*members, 120, 3)
    assert torch.equal(states[0], start.expand(4, 2)) and torch.equal(states[1:], next_states[:-1])
    low, high = torch.as_tensor(env.observation_space.low), torch.as_tensor(env.observation_space.high)
    assert (next_states >= low - 1e-6).all() and (next_states <= high + 1e-6).all()
    assert not ended.any()
    assert len(next_states.reshape(-1, 2).unique(dim=0)) > 60  # sampled, not the mean again and again


def test_imagined_trajectory_ends_at_the_known_goal_and_starts_again():
    _, policy, model = policy_and()
    start = torch.tensor([-0.5, 0.0])
    (states, _, _, next_states, ended), *_ = mc.imagine(policy, model, start, 8, 50, goal=-0.49)
    assert ended.any() and not ended.all()
    assert torch.equal(ended.bool(), next_states[..., 0] >= -0.49)
    after = states[1:][ended[:-1].bool()]
    assert torch.equal(after, start.expand_as(after))


def test_imagination_never_touches_the_real_environment(monkeypatch):
    _, policy, model = policy_and()

    def forbidden(*_):
        raise AssertionError("the real environment was stepped")

    monkeypatch.setattr(mc.NoisyMountainCar, "step", forbidden)
    monkeypatch.setattr(mc.NoisyMountainCar, "dynamics", staticmethod(forbidden))
    mc.imagine(policy, model, torch.tensor([-0.5, 0.0]), 4, 10, math.inf)


def test_real_steps_are_exactly_those_asked_for(in_tmp, monkeypatch):
    calls, step = [], mc.NoisyMountainCar.step
    monkeypatch.setattr(mc.NoisyMountainCar, "step", lambda self, action: calls.append(action) or step(self, action))
    mc.main(short())
    assert len(calls) == 200


def test_first_policy_is_uniform_and_its_value_zero():
    _, policy, _ = policy_and()
    logits, value = policy(torch.randn(50, 2))
    assert (logits == 0).all() and (value == 0).all()
    actions = policy.act(torch.zeros(6000, 2))
    assert (torch.bincount(actions, minlength=3) / 6000 - 1 / 3).abs().max() < 0.03


def test_ppo_learns_which_action_pays():
    """Reward for action 2 on the right, for action 0 on the left: the probability of the right choice must grow."""
    _, policy, _ = policy_and(policy_updates=20)
    for _ in range(30):
        states = torch.stack([torch.rand(20, 10) * 1.8 - 1.2, torch.zeros(20, 10)], -1)
        actions = policy.act(states.flatten(0, 1)).view(20, 10)
        rewards = (actions == torch.where(states[..., 0] > -0.3, 2, 0)).float()
        policy.update(states, actions, rewards, states, torch.ones(20, 10))
    probability = policy(torch.tensor([[0.3, 0.0], [-0.9, 0.0]]))[0].softmax(-1)
    assert probability[0, 2] > 0.8 and probability[1, 0] > 0.8


def test_bonuses_of_the_ensemble_and_of_the_gp():
    for dynamics in ("de", "gp"):
        _, _, model = policy_and(dynamics)
        x = torch.rand(7, 5)
        mean, var = model.predict(x)
        y = torch.randn(7, 3)
        for bonus in (model.eig(mean, var), model.variance(mean, var), model.error(mean, var, y)):
            assert bonus.shape == (7,) and (bonus >= -1e-6).all()
        assert model.entropy(mean, var).shape == (7,)
        if dynamics == "gp":  # both terms in closed form
            noise = model.noise.detach().float()
            expected = mc.gaussian_entropy(var + noise) - mc.gaussian_entropy(noise.expand_as(var))
            torch.testing.assert_close(model.eig(mean, var), expected, atol=1e-4, rtol=1e-4)


# ---------------------------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("method, bonus, dynamics", combinations("ppo"))
def test_every_combination_runs(in_tmp, method, bonus, dynamics):
    result = mc.main(short(method=method, bonus=bonus, dynamics=dynamics))
    stored = json.loads((in_tmp / "runs" / "test" / "result.json").read_text())
    assert stored == result
    assert result["steps"] == result["total_timesteps"] == 200
    assert 0 < result["coverage"] < 1 and result["episodic_return"] == -200
    assert result["bonus"] == (bonus if method in ("be", "pts-be") else None)
    assert result["dynamics"] == (dynamics if method in ("be", "pts", "pts-be") else None)
    assert result["solved"] is (result["solved_step"] is not None)


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_tensorboard_holds_what_is_promised(in_tmp):
    mc.main(short())
    accumulator = events(in_tmp / "runs" / "test")
    scalars = {"charts/coverage", "charts/SPS", "bonus/eig", "bonus/entropy", "bonus/error"}
    scalars |= {"losses/dynamics_loss", "losses/policy_loss", "losses/value_loss", "losses/entropy"}
    assert scalars <= set(accumulator.Tags()["scalars"])
    assert {"visits", "eig_map"} <= set(accumulator.Tags()["images"])
    coverage = [event.value for event in accumulator.Scalars("charts/coverage")]
    assert len(coverage) == 20 and coverage == sorted(coverage)


def test_measures_are_tracked_under_a_random_policy(in_tmp):
    mc.main(short(method="random", track_measures=True))
    assert len(events(in_tmp / "runs" / "test").Scalars("bonus/eig")) == 2  # updates at 64, 128 and 192


def test_same_seed_same_result_and_another_seed_another(in_tmp):
    results = []
    for seed in (1001, 1001, 1002):
        result = mc.main(short(seed=seed))
        results.append({name: value for name, value in result.items() if name not in ("wall_time_s", "sps", "seed")})
    assert results[0] == results[1] != results[2]


def test_goal_is_noticed_and_the_run_goes_on(in_tmp, monkeypatch):
    monkeypatch.setattr(mc.NoisyMountainCar, "GOAL", -0.45)
    result = mc.main(short(method="random"))
    assert result["solved"] and 1 <= result["solved_step"] < 200 and result["steps"] == 200


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"method": "pts-be", "bonus": "error"}, "needs the real next state"),
        ({"horizon": 0}, "--horizon is 0, it must be at least 1"),
        ({"eta": math.nan}, "--eta is nan"),
        ({"policy_lr": -1.0}, "--policy-lr is -1.0"),
        ({"capture_video": True}, "pip install"),
    ],
)
def test_bad_input_gets_one_line_and_status_2_and_writes_nothing(in_tmp, capsys, monkeypatch, flags, message):
    monkeypatch.setattr(mc, "find_spec", lambda _: None)
    with pytest.raises(SystemExit) as stop:
        mc.main(short(**flags))
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(in_tmp.iterdir())


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_what_was_learned(in_tmp, capsys, monkeypatch):
    monkeypatch.setattr(mc.DeepEnsemble, "fit", lambda *_: math.nan)
    with pytest.raises(SystemExit) as stop:
        mc.main(short())
    assert stop.value.code == 1
    assert "dynamics_loss is nan at step 64" in capsys.readouterr().err
    assert set(torch.load(in_tmp / "runs" / "test" / "model.pt")) == {"policy", "dynamics"}
    assert not (in_tmp / "runs" / "test" / "result.json").exists()


def test_saved_model_can_be_loaded(in_tmp):
    mc.main(short(save_model=True))
    saved = torch.load(in_tmp / "runs" / "test" / "model.pt")
    _, policy, model = policy_and()
    policy.load_state_dict(saved["policy"])
    model.load_state_dict(saved["dynamics"])


def test_pts_be_reaches_the_goal_where_random_does_not(in_tmp):
    """The main claim on one seed: median 265 steps, while a random policy has never been seen to arrive in 1000."""
    assert mc.main(mc.Args(seed=1001, run_name="a", total_timesteps=700))["solved"]
    assert not mc.main(mc.Args(seed=1001, run_name="b", total_timesteps=700, method="random"))["solved"]


def test_eta_decay_weakens_the_bonus(in_tmp, monkeypatch):
    """With no bonus left after the first update, the imagined rewards are those of the environment alone."""
    seen, update = [], mc.PPO.update
    monkeypatch.setattr(
        mc.PPO, "update", lambda self, *batch: seen.append(batch[2].abs().mean().item()) or update(self, *batch)
    )
    means = []
    for decay in (1.0, 1e-200):
        seen.clear()
        mc.main(short(extrinsic=False, eta_decay=decay))
        means.append(sum(seen) / len(seen))
    assert means[1] < 1e-2 * means[0]
