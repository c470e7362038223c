"""The chain against its transition table, what is the chain's own in the script, and every method for a short run."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import combinations
from gymnasium.utils.env_checker import check_env

import ptsbe_ppo_unichain as chain


def short(**changes):
    sizes = {"length": 10, "total_timesteps": 60, "horizon": 6, "rollouts": 4, "policy_updates": 4, "model_updates": 5}
    more = {"inducing_points": 16, "model_width": 16, "rollout_steps": 16, "run_name": "test", "seed": 1001}
    return chain.Args(**{**sizes, **more, **changes})


def test_environment_passes_gymnasiums_check():
    check_env(chain.Unichain(render_mode="rgb_array"))


@pytest.mark.parametrize("length", [3, 7])
def test_chain_equals_its_transition_table(length):
    env = chain.Unichain(length)
    state, _ = env.reset(seed=0)
    assert state[0] == pytest.approx(1 / (length - 1))
    for start in range(length):
        for action, move in enumerate((-1, 0, 1)):
            env.index = start
            state, reward, terminated, truncated, _ = env.step(action)
            expected = min(max(start + move, 0), length - 1)
            assert env.index == expected and state[0] == pytest.approx(expected / (length - 1))
            assert reward == {0: 0.001, length - 1: 1.0}.get(expected, 0.0)
            assert not terminated and not truncated


def test_noise_replaces_the_action_with_the_stated_probability():
    env = chain.Unichain(101, noise=0.3)
    env.reset(seed=0)
    moves = []
    for _ in range(6000):
        env.index = 50
        env.step(2)
        moves.append(env.index - 50)
    shares = [moves.count(move) / 6000 for move in (-1, 0, 1)]
    np.testing.assert_allclose(shares, [0.1, 0.1, 0.8], atol=0.02)


def test_states_are_scaled_by_the_box_and_not_by_the_data():
    scale = chain.BoxScale(chain.Unichain().observation_space, 3)
    x = torch.tensor([[0.0, 1, 0, 0], [0.5, 0, 1, 0], [1.0, 0, 0, 1]])
    scale.fit(x[:1])
    expected = torch.tensor([[-1.0, 0.1, 0, 0], [0.0, 0, 0.1, 0], [1.0, 0, 0, 0.1]])
    torch.testing.assert_close(scale(x), expected)


def test_scale_of_the_targets_is_that_of_the_first_data():
    scale = chain.WarmupScale(1)
    scale.fit(torch.tensor([[-2.0], [2.0]]))
    scale.fit(torch.tensor([[0.0], [0.1]]))
    torch.testing.assert_close(scale(torch.tensor([[4.0]])), torch.tensor([[2.0]]))


def build(dynamics, env):
    """The model as main builds it."""
    if dynamics in ("gp", "dk"):
        features = chain.ResNetFeatures(4, 32) if dynamics == "dk" else None
        model = chain.BoundedGP(4, 2, 48, 0.003, features)
    elif dynamics == "de":
        model = chain.ActionEnsemble(4, 2, 3, 5, 32, 20.0, 3e-3, 64)
    else:
        model = chain.DeepEnsemble(4, 2, 5, 32, 20.0, 3e-3, 64)
    model.in_scale = chain.BoxScale(env.observation_space, 3).to(model.in_scale.mean)
    model.out_scale.floor = torch.tensor([8.0, math.inf])
    return model


def transitions(env, states, actions):
    """Inputs and targets of one step from every state with every action: (N, 4), (N, 2)."""
    x, y = [], []
    for start in states:
        for action in actions:
            env.index = start
            before = env.state()
            after, reward, *_ = env.step(action)
            x.append([before[0], *np.eye(3)[action]])
            y.append([after[0] - before[0], reward])
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def test_what_an_action_does_is_learned_once_for_all_states():
    """All actions seen in states 1 to 15, only right in 16 to 45: left and stay in 30 to 45, errors in steps."""
    env = chain.Unichain(50)
    near, far = transitions(env, range(1, 16), (0, 1, 2)), transitions(env, range(16, 46), (2,))
    unseen, outcome = transitions(env, range(30, 46), (0, 1))
    error, eig = {}, {}
    for dynamics in ("de", "plain ensemble"):
        torch.manual_seed(0)
        model = build(dynamics, env)
        for _ in range(10):
            model.fit(torch.cat([near[0], far[0]]), torch.cat([near[1], far[1]]), 30)
        mean, var = model.predict(unseen)
        error[dynamics] = 49 * float((mean.mean(0) - outcome)[:, 0].abs().mean())
        eig[dynamics] = float(model.eig(mean, var).mean())
    assert error["de"] < 0.5 and error["plain ensemble"] > 1 and eig["de"] < eig["plain ensemble"]


@pytest.mark.parametrize("dynamics", ["de", "gp", "dk"])
def test_eig_fades_on_transitions_that_were_held_out(dynamics):
    torch.manual_seed(0)
    env = chain.Unichain(50)
    held_out, _ = transitions(env, range(1, 49, 2), (0, 1, 2))
    model = build(dynamics, env)
    eigs = []
    for known in (6, 50):
        x, y = transitions(env, range(0, known, 2), (0, 1, 2))
        for _ in range(20):
            model.fit(x, y, 30 if dynamics == "de" else 2)
        eigs.append(float(model.eig(*model.predict(held_out)).mean()))
    assert eigs[1] < 0.2 * eigs[0]


@pytest.mark.parametrize("share, present", [(0.0, 8), (0.5, 4), (1.0, 0)])
def test_share_of_imagined_trajectories_starts_in_replayed_states(in_tmp, monkeypatch, share, present):
    starts, imagine = [], chain.imagine
    monkeypatch.setattr(
        chain,
        "imagine",
        lambda policy, model, start, *rest: starts.append(start) or imagine(policy, model, start, *rest),
    )
    chain.main(short(rollouts=8, replayed_starts=share, length=40))
    last = starts[-1]
    assert last.shape == (8, 1)
    same = (last[8 - present :] == last[-1]).all() if present else True
    assert same and (share == 0 or len(last[: 8 - present].unique()) > 1)


def test_hyper_parameters_of_the_gp_stay_within_their_bounds():
    torch.manual_seed(0)
    gp = chain.BoundedGP(4, 2, 16, lr=0.5)
    gp.fit(torch.rand(40, 4), torch.zeros(40, 2), steps=30)
    lengthscale = gp.kernel.lengthscale
    assert (lengthscale >= gp.MIN_LENGTHSCALE - 1e-9).all() and (lengthscale <= gp.MAX_LENGTHSCALE + 1e-9).all()
    assert (gp.kernel.outputscale >= gp.MIN_OUTPUTSCALE - 1e-9).all() and (gp.scaled_noise >= gp.MIN_NOISE).all()


@pytest.mark.parametrize("method, bonus, dynamics", combinations("ppo"))
def test_every_combination_runs(in_tmp, method, bonus, dynamics):
    result = chain.main(short(method=method, bonus=bonus, dynamics=dynamics, noise=0.1))
    assert json.loads((in_tmp / "runs" / "test" / "result.json").read_text()) == result
    assert result["steps"] == 60 and 0.1 <= result["coverage"] <= 1 and result["env"] == "Unichain-10-noise0.1"
    assert result["bonus"] == (bonus if method in ("be", "pts-be") else None)


def test_same_seed_same_result_and_another_seed_another(in_tmp):
    results = []
    for seed in (1001, 1001, 1002):
        result = chain.main(short(seed=seed))
        results.append({name: value for name, value in result.items() if name not in ("wall_time_s", "sps", "seed")})
    assert results[0] == results[1] != results[2]


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"method": "pts-be", "bonus": "error"}, "needs the real next state"),
        ({"length": 2}, "--length is 2, a chain needs at least 3 states"),
        ({"noise": 1.5}, "--noise is 1.5, a probability is at most 1"),
        ({"eta": math.inf}, "--eta is inf"),
        ({"replayed_starts": 1.5}, "--replayed-starts is 1.5, a share is at most 1"),
        ({"rollouts": 5, "horizon": 5}, "--rollouts times --horizon is 25, it must be a multiple of --minibatches (4)"),
        ({"method": "ppo", "rollout_steps": 4}, "--rollout-steps is 4, it must be a multiple of --minibatches (4)"),
        ({"policy_interval": 0}, "--policy-interval is 0, it must be at least 1"),
    ],
)
def test_bad_input_gets_one_line_and_status_2_and_writes_nothing(in_tmp, capsys, flags, message):
    with pytest.raises(SystemExit) as stop:
        chain.main(short(**flags))
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(in_tmp.iterdir())


def test_pts_be_walks_to_the_end_of_the_chain(in_tmp):
    """A random walk needs about L^2 steps, 600 on average for 25 states; planning to explore walks there."""
    result = chain.main(chain.Args(seed=1001, length=25, total_timesteps=150, dynamics="gp", run_name="a"))
    assert result["solved"] and result["coverage"] > 0.9


def test_eta_decay_weakens_the_bonus(in_tmp, monkeypatch):
    """With no bonus left after the first update, the imagined rewards are those of the environment alone."""
    seen, update = [], chain.PPO.update
    monkeypatch.setattr(
        chain.PPO, "update", lambda self, *batch: seen.append(batch[2].abs().mean().item()) or update(self, *batch)
    )
    means = []
    for decay in (1.0, 1e-200):
        seen.clear()
        chain.main(short(extrinsic=False, eta_decay=decay))
        means.append(sum(seen) / len(seen))
    assert means[1] < 1e-2 * means[0]
