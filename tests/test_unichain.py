"""The chain against its transition table, and what is the chain's own in the script."""

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from test_scripts import short

import ptsbe_ppo_unichain as chain


def table(env):
    """The state after every action in every state: (L, 3)."""
    after = np.zeros((len(env.swapped), 3), int)
    for start in range(len(env.swapped)):
        for action in range(3):
            env.index = start
            env.step(action)
            after[start, action] = env.index
    return after


def test_environment_passes_gymnasiums_check():
    check_env(chain.make_env(chain.Args(), "rgb_array")[0])


@pytest.mark.parametrize("length", [3, 7])
def test_chain_equals_its_transition_table(length):
    env, _ = chain.make_env(chain.Args(length=length))
    state, _ = env.reset(seed=0)
    assert state[0] == pytest.approx(2 / (length - 1) - 1)
    np.testing.assert_array_equal(table(env), np.clip(np.arange(length)[:, None] + np.array([-1, 0, 1]), 0, length - 1))
    for start, action, reward in ((1, 0, 0.001), (length - 2, 2, 1.0), (1, 1, 0.0)):
        env.index = start
        assert env.step(action)[1:] == (reward, False, False, {})


def test_swapped_chains_exchange_left_and_right():
    plain = table(chain.make_env(chain.Args(length=50))[0])
    half = table(chain.make_env(chain.Args(length=50, swap="half"))[0])
    np.testing.assert_array_equal(half[:26], plain[:26])
    np.testing.assert_array_equal(half[26:], plain[26:, ::-1])
    draws = [table(chain.make_env(chain.Args(length=50, swap="random", seed=seed))[0]) for seed in (1, 1, 2)]
    assert np.array_equal(draws[0], draws[1]) and not np.array_equal(draws[0], draws[2])
    swapped = (draws[0] == plain[:, ::-1]).all(1)
    assert 10 < swapped.sum() < 40 and np.array_equal(draws[0][~swapped], plain[~swapped])


def test_noise_replaces_the_action_with_the_stated_probability():
    env, _ = chain.make_env(chain.Args(length=101, noise=0.3))
    env.reset(seed=0)
    moves = []
    for _ in range(6000):
        env.index = 50
        env.step(2)
        moves.append(env.index - 50)
    np.testing.assert_allclose([moves.count(move) / 6000 for move in (-1, 0, 1)], [0.1, 0.1, 0.8], atol=0.02)


def test_visits_count_states_and_notice_the_last():
    env, visits = chain.make_env(chain.Args(length=5))
    visits.add(env.reset(seed=0)[0][None], 0)
    for step in range(1, 5):
        visits.add(env.step(2)[0][None], step)
    assert visits.metrics() == {"coverage": 0.8, "solved_step": 3}
    assert np.concatenate(visits.path).tolist() == [1, 2, 3, 4, 4]


def transitions(env, states, actions):
    """Inputs and targets of one step from every state with every action: (N, 4), (N, 3)."""
    x, y = [], []
    for start in states:
        for action in actions:
            env.index = start
            before = env.codes[start]
            after, reward, *_ = env.step(action)
            x.append([before[0], *np.eye(3)[action]])
            y.append([after[0] - before[0], reward, 0.0])
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


@pytest.mark.parametrize("dynamics", ["de", "gp", "dk"])
def test_eig_is_larger_ahead_than_on_visited_states_and_fades(dynamics):
    torch.manual_seed(0)
    args = chain.parse(["--dynamics", dynamics])
    env, _ = chain.make_env(args)
    model = (chain.PriorEnsemble if dynamics == "de" else chain.SparseGP)(4, 3, args)
    held_out, _ = transitions(env, range(25, 49, 2), (0, 1, 2))
    eigs = []
    for known in (20, 50):
        x, y = transitions(env, range(0, known, 2), (0, 1, 2))
        for _ in range(10):
            model.fit(x, y, args.model_updates)
        eigs.append(model.eig(*model.predict(held_out)).mean())
        assert model.eig(*model.predict(x)).mean() < 0.1
    assert eigs[0] > 0.3 and eigs[1] < 0.1 * eigs[0]


@pytest.mark.parametrize("dynamics", ["de", "gp", "dk"])
def test_a_model_learns_that_actions_change_places(dynamics):
    """The half-swapped chain, all of it seen: errors in steps, at the middle too."""
    torch.manual_seed(0)
    args = chain.parse(["--dynamics", dynamics, "--swap", "half"])
    env, _ = chain.make_env(args)
    model = (chain.PriorEnsemble if dynamics == "de" else chain.SparseGP)(4, 3, args)
    x, y = transitions(env, range(50), (0, 1, 2))
    for _ in range(20):
        model.fit(x, y, args.model_updates)
    error = 24.5 * (model.predict(x)[0].mean(0) - y)[:, 0].abs()
    assert error.mean() < 0.3


@pytest.mark.parametrize("swap", ["none", "half"])
def test_pts_be_walks_to_the_end_of_the_chain(in_tmp, swap):
    """A random walk needs about L^2 steps, 600 on average for 25 states; planning to explore walks there."""
    result = chain.main(chain.Args(seed=1001, length=25, total_timesteps=200, swap=swap, run_name="a"))
    assert result["solved"] and result["coverage"] > 0.9


def test_a_batch_of_one_step_can_be_learned_from(in_tmp):
    """Four steps in four batches: the deviation of one advantage is 0, not undefined."""
    result = chain.main(short(chain, method="ppo", policy_interval=4, minibatches=4, total_timesteps=80))
    assert result["steps"] == 80


def angle_and_sine(length):
    angle = 2 * np.pi * np.arange(length)[:, None] / length
    return np.concatenate([angle / np.pi - 1, np.sin(angle)], 1).astype(np.float32)


@pytest.mark.parametrize("dynamics", ["de", "gp", "dk"])
def test_another_coding_of_the_state_is_one_function(in_tmp, monkeypatch, dynamics):
    monkeypatch.setattr(chain, "coding", angle_and_sine)
    env, visits = chain.make_env(chain.Args(length=20))
    state = env.reset(seed=0)[0]
    assert env.observation_space.contains(state) and state.shape == (2,)
    for step, index in enumerate((1, 7, 19)):
        visits.add(angle_and_sine(20)[index][None], step)
    assert np.concatenate(visits.path).tolist() == [1, 7, 19] and visits.solved_step == 2
    args = short(chain, dynamics=dynamics, length=20, total_timesteps=80)
    assert chain.main(args)["coverage"] > 0.1


class Stairs(torch.nn.Module):
    """A known world of one variable: `down` leads down at once, `up` costs something and leads to what pays more."""

    seen = torch.tensor([[-9.0] * 3, [9.0] * 3])

    def predict(self, x):
        left, right = x[:, 1], x[:, 3]
        y = torch.stack([0.1 * (right - left), left - 0.5 * right + 100 * (x[:, 0] > 0.15) * right, 0 * left], -1)
        return y[None], torch.zeros_like(y)[None]


@pytest.mark.parametrize("horizon, best", [(1, 0), (3, 2)])
def test_look_ahead_takes_the_first_action_of_the_best_trajectory(horizon, best):
    """One action ahead the small reward on the left is best, three ahead what pays after two steps to the right."""
    torch.manual_seed(0)
    args = chain.Args(method="pts", lookahead=horizon, rollouts=200, random_actions=1.0)
    policy = chain.PPO(1, 3, args)  # whose first values are 0
    assert {chain.look_ahead(policy, Stairs(), torch.zeros(1), 0.0, args) for _ in range(10)} == {best}


def test_planners_act_with_the_look_ahead_and_others_do_not(in_tmp, monkeypatch):
    monkeypatch.setattr(chain, "look_ahead", lambda *_: 1)  # stays where it is
    for method, lookahead in (("pts-be", 3), ("pts-be", 0), ("ppo", 3)):
        name = f"{method}-{lookahead}"
        chain.main(short(chain, method=method, lookahead=lookahead, run_name=name, warmup_steps=10))
        stays = len(set(np.load(in_tmp / "runs" / name / "path.npy")[11:])) == 1
        assert stays == (name == "pts-be-3")


def test_some_imagined_trajectories_keep_to_one_action_whatever_the_policy_is_sure_of():
    torch.manual_seed(0)
    policy = chain.PPO(1, 3, chain.Args())
    policy.networks.walk[-1].data[0, 0, 0] = 50.0  # sure of the first action
    for share, kept in ((0.0, 0), (0.3, 3)):
        args = chain.Args(random_actions=share)
        actions = chain.imagine(policy, Stairs(), torch.zeros(10, 1), 40, 0.0, args)[1]  # (J, K)
        assert actions[:, :kept].tolist() == [list(range(kept))] * 40
        assert (actions[:, kept:] == 0).float().mean() == (1.0 if share == 0 else pytest.approx(0.8, abs=0.05))
