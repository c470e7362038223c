"""The chain against its transition table, what is the chain's own in the script, and every method for a short run."""

import json
import math

import numpy as np
import pytest
import torch
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
    scale = chain.BoxScale(chain.Unichain().observation_space, 3, action_size=0.3)
    x = torch.tensor([[0.0, 1, 0, 0], [0.5, 0, 1, 0], [1.0, 0, 0, 1]])
    scale.fit(x[:1])
    expected = torch.tensor([[-1.0, 0.3, 0, 0], [0.0, 0, 0.3, 0], [1.0, 0, 0, 0.3]])
    torch.testing.assert_close(scale(x), expected)


def test_hyper_parameters_of_the_gp_stay_within_their_bounds():
    torch.manual_seed(0)
    gp = chain.BoundedGP(4, 2, 16, lr=0.5)
    gp.fit(torch.rand(40, 4), torch.zeros(40, 2), steps=30)
    lengthscale = gp.kernel.lengthscale
    assert (lengthscale >= gp.MIN_LENGTHSCALE - 1e-9).all() and (lengthscale <= gp.MAX_LENGTHSCALE + 1e-9).all()
    assert (gp.kernel.outputscale >= gp.MIN_OUTPUTSCALE - 1e-9).all() and (gp.scaled_noise >= gp.MIN_NOISE).all()


COMBINATIONS = [(method, "eig", "de") for method in ("random", "ppo")] + [
    (method, bonus, dynamics)
    for method in ("pts", "be", "pts-be")
    for bonus in ("eig", "entropy", "variance", "error")
    for dynamics in ("de", "gp", "dk")
    if (method, bonus) != ("pts-be", "error") and (method != "pts" or bonus == "eig")
]


@pytest.mark.parametrize("method, bonus, dynamics", COMBINATIONS)
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
