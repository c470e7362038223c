"""Point mazes: maps, the environment against its definition, models, SAC, pictures, every method for a short run."""

import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import combinations

import ptsbe_sac_maze as mz

U_SHAPE = mz.MAZES["u-shape"].strip()


def short(**changes):
    """A run of 200 steps with small networks, long enough for every part to act several times."""
    run = {"maze": "u-shape", "run_name": "test", "seed": 1001, "total_timesteps": 200, "warmup_steps": 60}
    run["action_repeat"] = 5
    policy = {"policy_updates": 2, "policy_width": 16, "policy_features": 16, "policy_batch": 16}
    model = {"model_updates": 3, "model_width": 16, "model_features": 16, "model_batch": 16, "gp_updates": 1}
    plan = {"horizon": 4, "rollouts": 15, "inducing_points": 16}
    return mz.Args(**{**run, **policy, **model, **plan, **changes})


def refused(capsys, call):
    """The one line with which a call is refused."""
    with pytest.raises(SystemExit) as stop:
        call()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error


# ---------------------------------------------------------------------------------------------------------------- maps

BAD_MAPS = {
    "empty": ("", "it is empty"),
    "blank": ("\n  \n", "it is empty"),
    "ragged": ("#####\n#r.g#\n####\n#####", "row 3 has 4 cells and row 1 has 5"),
    "gap": ("#####\n\n#r.g#\n#####", "row 2 has 0 cells and row 1 has 5"),
    "no start": ("####\n#.g#\n####", "has a start: mark one cell with r"),
    "two starts": ("#####\n#rg.#\n#..r#\n#####", "row 3, column 4: a second start after that in row 2, column 2"),
    "no goal": ("####\n#r.#\n####", "has a goal: mark one cell with g"),
    "two goals": ("#####\n#rgg#\n#####", "row 2, column 4: a second goal after that in row 2, column 3"),
    "goal walled in": ("#####\n#r#g#\n#####", "row 2, column 4: walls part the goal from the start"),
    "only a corner between": ("####\n#r##\n##g#\n####", "row 3, column 3: walls part the goal from the start"),
    "unknown character": ("#####\n#rXg#\n#####", "row 2, column 3: 'X' is none of"),
    "open border, left": ("#####\n.r.g#\n#####", "row 2, column 1: '.' at the border"),
    "open border, bottom": ("#####\n#r.g#\n##.##", "row 3, column 3: '.' at the border"),
    "start at the border": ("#r###\n#..g#\n#####", "row 1, column 2: 'r' at the border"),
}


@pytest.mark.parametrize("text, message", BAD_MAPS.values(), ids=BAD_MAPS)
def test_bad_map_gets_its_row_and_reason_and_writes_nothing(in_tmp, capsys, text, message):
    (in_tmp / "map.txt").write_text(text)
    error = refused(capsys, lambda: mz.main(short(maze="map.txt")))
    assert "--maze map.txt" in error and message in error
    assert os.listdir(in_tmp) == ["map.txt"]


def test_unreadable_maps_are_refused(in_tmp, capsys):
    (in_tmp / "folder").mkdir()
    (in_tmp / "binary").write_bytes(b"\xff\xfe\x00#")
    before = sorted(os.listdir(in_tmp))
    cases = {
        "nothing": "neither a file nor one of open, u-shape",
        "folder": "cannot be read",
        "binary": "not a text file",
    }
    for name, message in cases.items():
        assert message in refused(capsys, lambda name=name: mz.main(short(maze=name)))
    assert sorted(os.listdir(in_tmp)) == before


def test_bad_map_on_the_command_line(in_tmp):
    (in_tmp / "map.txt").write_text("####\n#r.#\n####\n")
    command = [sys.executable, mz.__file__, "--maze", "map.txt", "--seed", "1001"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr == "error: --maze map.txt, none of the rows 1 to 3 has a goal: mark one cell with g\n"
    assert os.listdir(in_tmp) == ["map.txt"]


@pytest.mark.parametrize("name", mz.MAZES)
def test_the_four_mazes(name):
    maze = mz.read_maze(name)
    assert maze.rows == mz.MAZES[name].split()
    assert maze.reachable.sum() == sum(row.count(".") for row in maze.rows) + 2  # no free cell is cut off
    np.testing.assert_allclose(maze.centre(np.stack(maze.cell(maze.start))), maze.start)
    assert maze.distance(maze.goal) == 0 and maze.distance(maze.start) > 1


def test_a_map_file_is_the_maze_it_draws(in_tmp):
    for text in (U_SHAPE, U_SHAPE + "\n\n", U_SHAPE.replace("\n", " \r\n"), "\ufeff" + U_SHAPE):
        (in_tmp / "map.txt").write_bytes(text.encode())
        assert mz.read_maze("map.txt").rows == mz.read_maze("u-shape").rows


# --------------------------------------------------------------------------------------------------------- environment


def drive(env, actions, seed=0):
    """States (T + 1, 4), rewards, terminations and truncations of one episode."""
    state, _ = env.reset(seed=seed)
    states, rest = [state], []
    for action in actions:
        state, *outcome, _ = env.step(np.asarray(action, dtype=np.float32))
        states.append(state)
        rest.append(outcome)
    return np.array(states), *map(np.array, zip(*rest, strict=True))


def random_pushes(count, hold=20, seed=0):
    """Full force in random directions, each held for a while: such a ball gets far and hits walls hard."""
    return np.random.default_rng(seed).choice([-1.0, 0.0, 1.0], (count // hold, 2)).repeat(hold, 0)


@pytest.mark.parametrize("name", mz.MAZES)
def test_start_and_goal_are_those_of_the_map_and_do_not_move(name):
    maze = mz.read_maze(name)
    env = mz.make_env(maze, 10)
    for seed in range(3):
        state, _ = env.reset(seed=seed)
        assert state.dtype == np.float32 and env.observation_space.contains(state)
        np.testing.assert_allclose(state, [*maze.start, 0, 0])
        np.testing.assert_allclose(env.unwrapped.goal, maze.goal)


def test_jitter_moves_start_and_goal_within_its_range():
    maze = mz.read_maze("u-shape")
    env = mz.make_env(maze, 10, jitter=0.1)
    starts = np.array([env.reset(seed=seed)[0][:2] - maze.start for seed in range(20)])
    assert 0.05 < np.abs(starts).max() <= 0.1 and len(np.unique(starts)) == 40


def test_reward_is_1_within_the_radius_of_the_goal_and_ends_the_episode():
    maze = mz.read_maze("open")
    env = mz.make_env(maze, 1000)
    env.reset(seed=0)
    ball = env.unwrapped.point_env
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(300):
        ball.set_state(maze.goal + rng.uniform(-1, 0.3, 2) * (1, -1), np.zeros(2))
        state, reward, terminated, truncated, _ = env.step(np.zeros(2, np.float32))
        distance = float(maze.distance(state[:2]))
        if abs(distance - 0.45) > 1e-5:
            assert reward == (1.0 if distance < 0.45 else 0.0) and terminated == (distance < 0.45) and not truncated
            seen.add(reward)
    assert seen == {0.0, 1.0}


def test_reset_interval_truncates_and_does_not_terminate():
    env = mz.make_env(mz.read_maze("u-shape"), 30)
    _, rewards, terminated, truncated = drive(env, np.zeros((30, 2)))
    assert not terminated.any() and not rewards.any()
    assert truncated.tolist() == [False] * 29 + [True]


def test_same_seed_and_actions_same_trajectory():
    maze = mz.read_maze("double-u-shape")
    for jitter in (0.0, 0.2):
        first, *_ = drive(mz.make_env(maze, 1000, jitter), random_pushes(400), seed=5)
        again, *_ = drive(mz.make_env(maze, 1000, jitter), random_pushes(400), seed=5)
        np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("name", mz.MAZES)
def test_walls_hold_and_real_states_are_never_inside_them(name):
    maze = mz.read_maze(name)
    states, *_ = drive(mz.make_env(maze, 10_000), random_pushes(3000))
    assert maze.reachable[maze.cell(states[:, :2])].all()
    assert not maze.inside_wall(states[:, :2]).any()
    assert np.abs(states[:, 2:]).max() > 4  # it did run into them at speed


def test_no_file_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mz.make_env(mz.read_maze("open"), 10).close()
    assert not os.listdir(tmp_path)


def test_inside_wall_counts_a_ball_that_sticks_in_a_wall():
    maze = mz.read_maze("u-shape")  # 5 x 5 cells, the start in the middle of x -1.5 to -0.5, y 0.5 to 1.5
    places = {(-1.0, 1.0): False, (-1.0, 0.0): True, (9.0, 0.0): True, (-1.0, 1.4): False, (-1.0, 1.47): True}
    places |= {(-1.0, 0.55): False, (-1.0, 0.53): True, (1.0, 0.0): False}
    for xy, expected in places.items():
        assert maze.inside_wall(np.array(xy)) == expected, xy
    assert maze.inside_wall(np.array(list(places))).tolist() == list(places.values())
    assert maze.inside_wall(np.zeros((3, 4, 2))).shape == (3, 4)


def test_cells_and_positions_are_inverse():
    maze = mz.read_maze("obstacles")
    for parts in (1, maze.PARTS):
        cells = np.argwhere(np.ones(np.array(maze.walls.shape) * parts))
        np.testing.assert_array_equal(np.stack(maze.cell(maze.centre(cells, parts), parts), -1), cells)
    np.testing.assert_array_equal(maze.centre(np.array([0, 0])), [-5, 4.5])  # top left: x to the right, y upwards


def test_coverage_counts_reachable_squares():
    maze = mz.parse_map("######\n#rg#.#\n######")  # the last cell cannot be reached
    assert maze.coverage() == 0 and len(maze.free_positions()) == 2 * maze.PARTS**2
    for count, xy in enumerate(maze.free_positions(), 1):
        maze.visit(xy)
        assert maze.coverage() == pytest.approx(count / 32)
    maze.visit(maze.centre(np.array([1, 4])))
    assert maze.coverage() == 1 and maze.visits.sum() == 33


# ------------------------------------------------------------------------------------------------------ dynamics models


def test_fourier_features_have_the_rbf_kernel():
    torch.manual_seed(0)
    features = mz.FourierFeatures(2, 10_000, length_scale=0.7)
    positions = torch.rand(2, 30, 2) * 3
    seen = features(positions)  # (2, 30, features)
    distances = torch.cdist(positions, positions)
    kernel = torch.exp(-0.5 * (distances / 0.7).square())
    torch.testing.assert_close(seen @ seen.mT / 10_000, kernel, atol=0.04, rtol=0)
    assert not torch.equal(features.frequencies[0], features.frequencies[1])


def free_motion(count, centre=(0.0, 0.0), seed=0):
    """Transitions of a ball without walls, positions within 1 m of a centre: dx = 0.05 v, dv = a, reward 0."""
    torch.manual_seed(seed)
    position = torch.tensor(centre) + 2 * torch.rand(count, 2) - 1
    velocity, action = torch.randn(count, 2), 2 * torch.rand(count, 2) - 1
    x = torch.cat([position, velocity, action], -1)
    return x, torch.cat([0.05 * velocity, action, torch.zeros(count, 1)], -1)


def trained_ensemble(x, y, steps=600, **changes):
    torch.manual_seed(0)
    ensemble = mz.PriorEnsemble(6, 5, mz.Args(**changes))
    for _ in range(3):
        ensemble.fit(x, y, steps // 3)
    return ensemble


def test_members_agree_on_data_and_disagree_away_from_it():
    (x, y), (held_out, _), (away, _) = free_motion(400), free_motion(200, seed=1), free_motion(200, (5.0, 5.0))
    torch.manual_seed(0)
    ensemble = mz.PriorEnsemble(6, 5, mz.Args(eig_threshold=0.0))
    before = ensemble.eig(*ensemble.predict(held_out)).mean()
    ensemble = trained_ensemble(x, y, eig_threshold=0.0)
    known, unknown = (ensemble.eig(*ensemble.predict(z)).mean() for z in (held_out, away))
    assert before > 0.3 and unknown > 0.3 and known < 0.1 * min(before, unknown)
    means, _ = ensemble.predict(away)
    spread = (means / ensemble.out_scale.scale).std(0).mean(0)  # (D,)
    assert (spread[:4] > 1).all() and spread[4] < 1  # no prior for the reward
    ensemble.threshold = mz.Args.eig_threshold
    assert (ensemble.eig(*ensemble.predict(held_out)) == 0).float().mean() > 0.9


def effects_away(ensemble):
    """How much of what action and velocity do is known 4 m off the data, 1 for all: 2 x float."""
    away, _ = free_motion(100, (4.0, 0.0), seed=1)
    shares = []
    for column, output, truth in ((4, 2, 1.0), (2, 0, 0.05)):
        other = away.clone()
        other[:, column] += 1
        effect = ensemble.predict(other)[0] - ensemble.predict(away)[0]  # (M, N, D), the prior cancels
        shares.append(float(effect[..., output].mean()) / truth)
    return shares


def test_what_velocity_and_action_do_is_learned_along_the_linear_path_for_all_places():
    x, y = free_motion(400)
    small = mz.Args(model_width=8, model_features=8, model_lr=1e-2)
    torch.manual_seed(0)
    alone = mz.PriorEnsemble(6, 5, small)
    alone.networks.requires_grad_(False)
    alone.fit(x, y, 1000)
    assert effects_away(alone) == pytest.approx([1, 1], abs=0.15)
    both, without = (mz.PriorEnsemble(6, 5, small) for _ in range(2))
    without.load_state_dict(both.state_dict())
    without.linear.requires_grad_(False)
    for ensemble in (both, without):
        torch.manual_seed(0)
        ensemble.fit(x, y, 300)
    assert all(shared > other + 0.05 for shared, other in zip(effects_away(both), effects_away(without), strict=True))


def test_a_wall_is_learned_from_rare_contacts():
    """A ball in x stops at 0.5; one transition of twenty touches the wall. The likelihood alone calls that noise."""
    torch.manual_seed(2)
    count = 1000
    position, velocity = 2 * torch.rand(count) - 1.5, 2 + 2 * torch.rand(count)  # the wall is the right end
    x = torch.zeros(count, 6)
    x[:, 0], x[:, 2] = position, velocity
    x[:, 3:] = 0.3 * torch.randn(count, 3)
    keep = (position + 0.1 * velocity < 0.5) | (torch.rand(count) < 0.3)
    x = x[keep]
    y = torch.zeros(len(x), 5)
    hit = x[:, 0] + 0.1 * x[:, 2] > 0.5
    y[:, 0] = torch.where(hit, 0.5 - x[:, 0], 0.1 * x[:, 2])
    y[:, 2] = torch.where(hit, -x[:, 2], torch.zeros(len(x)))
    assert 0.02 < hit.float().mean() < 0.1
    ensemble = trained_ensemble(x, y, 900)
    fast = torch.tensor([[0.4, 0.0, 3.5, 0.0, 0.0, 0.0], [-0.5, 0.0, 3.5, 0.0, 0.0, 0.0]])  # before the wall, far off
    mean = ensemble.predict(fast)[0].mean(0)  # (2, D)
    assert mean[:, 0].tolist() == pytest.approx([0.1, 0.35], abs=0.08)
    assert mean[:, 2].tolist() == pytest.approx([-3.5, 0.0], abs=0.7)


def test_a_ball_that_rests_at_a_wall_does_not_creep_into_it():
    """Free motion left of a wall at 0.5 and balls at rest that are pushed against it; then 40 imagined pushes."""
    x, y = free_motion(300)
    x[:100, 0], x[:100, 2], x[:100, 4] = 0.5, 0, torch.rand(100)
    y[:100, 0], y[:100, 2] = 0, 0
    left = x[:, 0] <= 0.5
    depth = []
    for noise in (0.0, mz.Args.input_noise):
        ensemble = trained_ensemble(x[left], y[left], 1200, input_noise=noise)
        state = torch.tensor([[0.5, 0, 0, 0]]).repeat(100, 1)
        for _ in range(40):
            push = torch.tensor([[0.8, 0.0]]).repeat(100, 1)
            state = state + ensemble.advance(torch.cat([state, push], -1))[:, :-1]
            state[:, 1::2] = 0  # along the wall nothing happens
        depth.append(float((state[:, 0] - 0.5).clamp_min(0).mean()))
    assert depth[1] < 0.5 * depth[0] and depth[1] < 0.03


def test_a_trajectory_stays_with_its_member():
    """Noise-free members that differ in a constant: row k shows the constant of the same member at every step."""
    torch.manual_seed(0)
    ensemble = mz.PriorEnsemble(6, 5, mz.Args())
    ensemble.MIN_LOG_VAR = ensemble.MAX_LOG_VAR = -40.0
    with torch.no_grad():
        for parameter in (*ensemble.networks.parameters(), *ensemble.linear.parameters(), ensemble.prior):
            parameter.zero_()
        ensemble.linear.biases[0].copy_(torch.arange(5.0).view(5, 1, 1).expand_as(ensemble.linear.biases[0]))
    for _ in range(2):
        members = ensemble.advance(torch.randn(15, 6))[:, 0].round()
        assert members.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3


@pytest.mark.parametrize("dynamics", ["gp", "dk"])
def test_eig_of_the_gp_falls_on_held_out_transitions(dynamics):
    (held_out, _), (away, _) = free_motion(100, seed=1), free_motion(100, (9.0, 9.0))
    known = []
    for count in (20, 300):
        x, y = free_motion(count)
        torch.manual_seed(0)
        features = mz.ResNetFeatures(6, 32) if dynamics == "dk" else None
        model = mz.MazeGP(6, 5, mz.Args(gp_eig_noise=0.3), features)
        model.fit(x, y + 0.01 * torch.randn_like(y), 50)
        known.append(model.eig(*model.predict(held_out)).mean())
    assert known[1] < 0.5 * known[0] and model.eig(*model.predict(away)).mean() > 3 * known[1]
    assert model.advance(held_out).shape == (100, 5)
    assert model.sample(*model.predict(held_out)).dtype == torch.float32


def test_the_floor_and_the_threshold_make_small_disagreements_count_nothing():
    mean, var = 0.1 * torch.randn(5, 50, 5), torch.full((5, 50, 5), 1e-4)
    for settings, expected in (({"eig_noise": 0.0, "eig_threshold": 0.0}, mz.mixture_eig(mean, var)), ({}, 0.0)):
        ensemble = mz.PriorEnsemble(6, 5, mz.Args(**settings))
        torch.testing.assert_close(ensemble.eig(mean, var), torch.zeros(50) + expected)


# ----------------------------------------------------------------------------------------------------------------- SAC


def small_sac(action_dim=1, **changes):
    torch.manual_seed(0)
    return mz.SAC(action_dim, mz.Args(policy_width=32, policy_features=16, **changes))


def batch_of(count=256):
    torch.manual_seed(1)
    return torch.randn(count, 4), torch.rand(count, 1) * 2 - 1


def test_density_of_the_actor_against_numerical_integration():
    """exp(log_prob) of sampled actions against the tanh-Gaussian by a change of variables on a grid, in 1-D.

    Both relative to the uniform density, 1 / 2.
    """
    policy = small_sac().double()
    with torch.no_grad():
        policy.actor.layers[-1][1].copy_(torch.tensor([0.4, 0.3]))  # mean and deviation not those of 0
    code = policy.encode(torch.randn(1, 4, dtype=torch.float64))
    with torch.no_grad():
        action, log_prob = policy.sample(code.expand(20_000, -1))
    mean, raw = policy.actor(code[None])[0, 0].detach()
    mean = 2 * (mean / 2).tanh()
    std = (-3 + 3.5 * (raw.tanh() + 1) / 2).exp()
    before = torch.linspace(-9, 9, 2_000_001, dtype=torch.float64)
    density = torch.exp(-0.5 * ((before - mean) / std).square()) / (std * math.sqrt(2 * math.pi))
    grid, width = before.tanh(), before[1] - before[0]
    cumulative = torch.cumsum(density, 0) * width  # P(action <= grid), by integration
    for x in (0.2, 0.4, 0.6):  # the slope of the cumulative probability is the density of the action
        low, high = torch.searchsorted(grid, torch.tensor([x - 1e-4, x + 1e-4], dtype=torch.float64))
        slope = (cumulative[high] - cumulative[low]) / (grid[high] - grid[low])
        near = (action[:, 0] - x).abs().argmin()
        assert float(log_prob[near].exp()) == pytest.approx(2 * float(slope), rel=0.02)
    ratio = 2 * density / (1 - grid.square()).clamp(min=1e-300)
    divergence = (density * ratio.clamp(min=1e-300).log()).sum() * width  # from the uniform policy
    assert divergence > 0.1 and float(log_prob.mean()) == pytest.approx(float(divergence), abs=0.02)


def test_density_holds_for_extreme_actions():
    policy = small_sac(2)
    with torch.no_grad():
        policy.actor.layers[-1][1].copy_(torch.tensor([40.0, -40.0, 20.0, -90.0]))
    action, log_prob = policy.sample(policy.encode(torch.zeros(100, 4)))
    log_prob.sum().backward()
    assert (action.abs() <= 1).all() and log_prob.isfinite().all()
    assert all(p.grad.isfinite().all() for p in policy.actor.parameters())


def test_value_and_losses_are_those_of_the_equations():
    """V = min_i Q_i' - alpha log pi, critics' loss sum_i (Q_i - R)^2, actor's alpha log pi - min_i Q_i, same draws."""
    policy = small_sac(temperature=0.3)
    for parameter in policy.targets.parameters():
        parameter.mul_(1.5)  # not the critics
    (states, actions), returns = batch_of(), torch.randn(256)
    with torch.no_grad():
        code = policy.encode(states)
        torch.manual_seed(5)
        new_actions, log_prob = policy.sample(code)
        value = torch.minimum(*policy.targets(code, new_actions)) - 0.3 * log_prob
        critic_loss = sum((q - returns).square().mean() for q in policy.critics(code, actions))
        actor_loss = (0.3 * log_prob - torch.minimum(*policy.critics(code, new_actions))).mean()
    torch.manual_seed(5)
    torch.testing.assert_close(policy.value(states), value)
    torch.manual_seed(5)
    policy.update(states, actions, returns)
    losses = policy.last_losses()
    assert losses["critic_loss"] == pytest.approx(float(critic_loss), rel=1e-4)
    assert losses["actor_loss"] == pytest.approx(float(actor_loss), rel=1e-4)
    assert losses["entropy"] == pytest.approx(float(-log_prob.mean()), rel=1e-4)


def test_critics_learn_the_value_of_a_reward_for_ever():
    """Reward 1 for ever is worth 1 / (1 - gamma)."""
    policy = small_sac(policy_lr=3e-3, tau=0.05, temperature=1e-6)
    states, actions = batch_of()
    for _ in range(300):
        policy.update(states, actions, 1 + 0.5 * policy.value(states))
    assert policy.critics(policy.encode(states), actions).mean().item() == pytest.approx(2, abs=0.1)


def test_sac_learns_which_action_pays():
    policy = small_sac(policy_lr=3e-3, temperature=0.01)
    for _ in range(400):
        states, actions = torch.randn(128, 4), torch.rand(128, 1) * 2 - 1
        policy.update(states, actions, -(actions[:, 0] - 0.5 * states[:, 2].sign()).square())
    states = torch.tensor([[0.0, 0.0, 1.5, 0.0], [0.0, 0.0, -1.5, 0.0]])
    actions, log_prob = policy.act(states.repeat(200, 1))
    assert log_prob.shape == (400,)
    assert actions.view(200, 2).mean(0).tolist() == pytest.approx([0.5, -0.5], abs=0.25)


def test_targets_follow_and_are_not_trained():
    policy = small_sac(tau=0.25)
    before = [p.clone() for p in policy.targets.parameters()]
    policy.update(*batch_of(), torch.ones(256))
    for old, target, critic in zip(before, policy.targets.parameters(), policy.critics.parameters(), strict=True):
        torch.testing.assert_close(target, old + 0.25 * (critic.detach() - old))
    assert any(not torch.equal(old, target) for old, target in zip(before, policy.target_parameters, strict=True))


def test_temperature_is_fixed_unless_tuned_towards_the_target_entropy():
    for autotune in (False, True):
        policy = small_sac(policy_lr=1e-2, temperature=0.2, autotune=autotune)
        for _ in range(20):
            policy.update(*batch_of(), torch.zeros(256))
        temperature = policy.log_temperature.exp().item()
        # the entropy starts far above the target, so that the temperature must fall
        assert temperature < 0.19 if autotune else temperature == pytest.approx(0.2)


# --------------------------------------------------------------------------------------------------------- imagination


def test_lambda_returns_by_hand():
    rewards, discounts = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.4, 0.3])
    values, entropies = torch.tensor([10.0, 20.0, 30.0]), torch.tensor([0.1, 0.2, 0.3])
    columns = [tensor[:, None] for tensor in (rewards, discounts, values, entropies)]
    expected = {
        0.8: [5.0944, 7.536, 12.0],  # 3 + 0.3 * 30; 2 + 0.4 (0.2 * 20 + 0.8 * 12.3); 1 + 0.5 (0.2 * 10 + 0.8 * 7.736)
        0.0: [6.0, 10.0, 12.0],  # one step and the value of what follows
        1.0: [4.56, 6.92, 12.0],  # the whole trajectory and the last value
    }
    for lam, returns in expected.items():
        assert mz.lambda_returns(*columns, lam)[:, 0].tolist() == pytest.approx(returns)


@pytest.mark.parametrize("dynamics", ["de", "gp"])
def test_imagined_trajectories_have_the_stated_shapes_and_follow_the_model(dynamics):
    args = short(random_actions=0.5)
    torch.manual_seed(0)
    model = mz.PriorEnsemble(6, 5, args) if dynamics == "de" else mz.MazeGP(6, 5, args)
    model.fit(*free_motion(100), 10)
    start = torch.randn(15, 4)
    policy = SimpleNamespace(act=lambda state: (torch.full((len(state), 2), 0.25), torch.zeros(len(state))))
    (states, actions, log_probs, outcomes), mean, var = mz.imagine_from(policy, model, start, 7, 0.5)
    assert states.shape == (7, 15, 4) and actions.shape == (7, 15, 2) and outcomes.shape == (7, 15, 5)
    assert log_probs.shape == (7, 15) and mean.shape == var.shape
    assert mean.shape == ((5, 105, 5) if dynamics == "de" else (105, 5))
    torch.testing.assert_close(states[0], start)
    torch.testing.assert_close(states[1:], states[:-1] + outcomes[:-1, :, :-1])
    own = (actions == 0.25).all(-1)
    assert 0.3 < own.float().mean() < 0.7
    assert (actions.abs() <= 1).all() and actions[~own].std() == pytest.approx(1 / math.sqrt(3), abs=0.1)
    expected, _ = model.predict(torch.cat([states, actions], -1).flatten(0, 1))
    torch.testing.assert_close(mean, expected)


@pytest.mark.parametrize("method", ["random", "sac", "be", "pts-be"])
def test_only_the_steps_asked_for_are_taken_in_the_real_environment(in_tmp, monkeypatch, method):
    """Imagination, bonuses and pictures do not touch it; and an action is held for action_repeat steps."""
    calls = []
    make_env = mz.make_env

    def watched(*args, **kwargs):
        env = make_env(*args, **kwargs)
        step = env.step
        env.step = lambda action: calls.append(tuple(action)) or step(action)
        return env

    monkeypatch.setattr(mz, "make_env", watched)
    mz.main(short(method=method))
    assert len(calls) == 200
    assert all(len(set(calls[i : i + 5])) == 1 for i in range(0, 200, 5)) and len(set(calls)) == 40


def test_planning_starts_in_three_kinds_of_states_and_ends_where_information_is_gained(in_tmp, monkeypatch):
    imagined, planned = [], []
    imagine_from, lambda_returns = mz.imagine_from, mz.lambda_returns

    def watched_imagination(policy, dynamics, start, *settings):
        outcome = imagine_from(policy, dynamics, start, *settings)
        imagined.append((start, dynamics.eig(*outcome[1:])))
        return outcome

    def watched_returns(rewards, discounts, next_values, entropies, lam):
        planned.append((discounts, lam))
        return lambda_returns(rewards, discounts, next_values, entropies, lam)

    monkeypatch.setattr(mz, "imagine_from", watched_imagination)
    monkeypatch.setattr(mz, "lambda_returns", watched_returns)
    mz.main(short(gamma=0.9, lam=0.8, lookahead=0))
    path = path_of(in_tmp / "runs" / "test")
    assert len(imagined) == len(planned) == 8  # steps 60 to 200
    for step, (start, eig), (discounts, lam) in zip(range(60, 201, 20), imagined, planned, strict=True):
        places = start[:, :2].numpy()
        visited = (places[:, None] == path[:step]).all(-1).any(1)
        current = (places == path[step]).all(-1)
        assert current.sum() == 5 and (visited & ~current).sum() == 5 and (~visited & ~current).sum() == 5
        torch.testing.assert_close(discounts, 0.9 * (-eig).exp().view(4, 15))
        assert lam == 0.8
    assert max(float(eig.max()) for _, eig in imagined) > 0.05


def test_the_control_without_bonus_does_not_know_the_eig(in_tmp, monkeypatch):
    discounts, lambda_returns = [], mz.lambda_returns
    monkeypatch.setattr(mz, "lambda_returns", lambda *columns: discounts.append(columns[1]) or lambda_returns(*columns))
    mz.main(short(method="pts", gamma=0.9))
    assert len(discounts) > 30 and all((discount == 0.9).all() for discount in discounts)


@pytest.mark.parametrize("rollouts", [1, 16])
def test_any_number_of_trajectories(in_tmp, rollouts):
    assert mz.main(short(rollouts=rollouts, total_timesteps=100))["imagined_in_walls"] >= 0


def test_the_ball_takes_the_first_action_of_the_best_trajectory(in_tmp, monkeypatch):
    """From its present state, over the stated number of actions, with the value of the last state at the end."""
    plan, make_env, calls, taken = mz.plan, mz.make_env, [], []

    def watched_plan(policy, dynamics, start, horizon, lam, *settings):
        outcome = plan(policy, dynamics, start, horizon, lam, *settings)
        if horizon == 3:
            calls.append((start, lam, outcome[1][0], outcome[3][0]))
        return outcome

    def watched_env(*args, **kwargs):
        env = make_env(*args, **kwargs)
        step = env.step
        env.step = lambda action: taken.append(action) or step(action)
        return env

    monkeypatch.setattr(mz, "plan", watched_plan)
    monkeypatch.setattr(mz, "make_env", watched_env)
    mz.main(short(lookahead=3))
    path = path_of(in_tmp / "runs" / "test")
    assert len(calls) == 28  # steps 60 to 200, each action is held for five
    for step, (start, lam, actions, returns) in zip(range(60, 200, 5), calls, strict=True):
        assert start.shape == (15, 4) and lam == 1
        assert (start[:, :2].numpy() == path[step]).all()
        assert returns.max() > returns.min()
        np.testing.assert_array_equal(taken[step], actions[returns == returns.max()][0].numpy())


def test_adam_is_that_of_torch():
    ours, theirs = ([torch.nn.Parameter(torch.ones(size)) for size in (3, 40)] for _ in range(2))
    optimizer, reference = mz.Adam(ours, 0.1), torch.optim.Adam(theirs, lr=0.1, fused=True)
    for step in range(20):
        optimizer.lr = reference.param_groups[0]["lr"] = 0.1 / (1 + step)
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine) * mine.detach()
            other.grad = mine.grad.clone()
        optimizer.step()
        reference.step()
        assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
        assert all(mine.grad is None for mine in ours)
    assert abs(ours[0][0].item() - 1) > 0.1


class Corridor:
    """A known world: every action moves the ball by 1 m, and the goal lies at 3 m."""

    def advance(self, x):
        y = torch.zeros(len(x), 5)
        y[:, 0], y[:, -1] = 1, (x[:, 0] == 2).float()
        return y

    def predict(self, x):
        return torch.zeros(5, len(x), 5), torch.ones(5, len(x), 5)

    def eig(self, mean, var):
        return torch.zeros(mean.shape[1])


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_imagined_trajectories_end_at_the_goal(monkeypatch, eta):
    args = mz.Args(gamma=0.5, temperature=1e-20)
    monkeypatch.setattr(mz.SAC, "value", lambda self, state: torch.full((len(state),), 8.0))
    *_, returns, survival = mz.plan(
        mz.SAC(2, args), Corridor(), torch.zeros(2, 4), 5, 1.0, eta, torch.tensor([0.0, 1.0]), args
    )
    column = torch.tensor([[1.0], [1.0], [0.0], [1.0], [1.0]])
    torch.testing.assert_close(survival, column.expand(5, 2))
    column = torch.tensor([[0.25], [0.5], [1.0], [2.0], [4.0]])  # what lies beyond the goal counts only from there
    torch.testing.assert_close(returns, column.expand(5, 2))


def test_rewards_beyond_those_seen_are_not_believed(in_tmp, monkeypatch):
    """pts has no bonus: with critics of value 0 and no reward seen, imagined returns are the entropies alone."""
    returns = []
    monkeypatch.setattr(mz.SAC, "value", lambda self, state: torch.zeros(len(state)))
    monkeypatch.setattr(mz.SAC, "update", lambda self, states, actions, targets: returns.append(targets))
    monkeypatch.setattr(mz.SAC, "last_losses", lambda self: {})
    mz.main(short(method="pts", temperature=1e-20))
    assert len(returns) > 4 and torch.cat(returns).abs().max() < 1e-12
    returns.clear()
    mz.main(short(method="pts-be", temperature=1e-20))
    assert torch.cat(returns).max() > 0.05 and torch.cat(returns).min() >= -1e-12


# ------------------------------------------------------------------------------------------------------------ pictures


def test_picture_shows_walls_floor_start_goal_and_path():
    maze = mz.read_maze("u-shape")
    size = 5 * mz.PIXELS
    path = np.stack([np.linspace(-1, 1, 100), np.full(100, 0.8)], -1)
    picture = mz.draw(maze, path=path)
    assert picture.shape == (size + mz.PIXELS // 4, size, 3) and picture.dtype == np.uint8

    def at(x, y):
        row, column = maze.cell(np.array([x, y]), mz.PIXELS)
        return tuple(picture[row, column].tolist())

    assert at(-2, 2) == at(-1, 0) == mz.WALL
    assert at(1, 0) == at(0, -1) == mz.FLOOR
    assert at(*maze.start) == mz.START and at(*maze.goal) == mz.GOAL
    assert at(-0.99, 0.8) != mz.FLOOR and at(0.99, 0.8) != mz.FLOOR
    assert np.abs(np.subtract(at(0.99, 0.8), mz.TIME[-1])).max() < 12  # the last colour at the end


def test_picture_of_values_is_white_at_0_and_darkest_at_the_largest():
    maze = mz.read_maze("open")
    squares = np.zeros(maze.visits.shape)
    squares[maze.cell(np.array([0.1, 0.1]), maze.PARTS)] = 7
    picture = mz.draw(maze, squares=squares)
    row, column = maze.cell(np.array([0.1, 0.1]), mz.PIXELS)
    assert tuple(picture[row, column].tolist()) == mz.HEAT[-1]
    row, column = maze.cell(np.array([0.1, -0.9]), mz.PIXELS)
    assert tuple(picture[row, column].tolist()) == mz.HEAT[0]


def test_eig_map_is_the_mean_over_motions_at_each_reachable_square():
    class Distance:
        """A model whose EIG is the distance to the start plus the speed."""

        def predict(self, x):
            return x, x

        def eig(self, mean, var):
            return (mean[:, :2] - torch.tensor(maze.start)).norm(dim=-1) + mean[:, 2:4].norm(dim=-1)

    maze = mz.read_maze("u-shape")
    squares = mz.eig_map(maze, Distance(), torch.device("cpu"))
    assert squares.shape == maze.visits.shape and (squares[~maze.fine(maze.reachable)] == 0).all()
    for xy in maze.free_positions():
        expected = np.linalg.norm(xy - maze.start) + 0.8 * 2.5  # four of five motions have half speed
        assert squares[maze.cell(xy, maze.PARTS)] == pytest.approx(expected, abs=1e-5)


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_run_leaves_pictures_and_visits(in_tmp):
    mz.main(short(method="random"))
    run = in_tmp / "runs" / "test"
    header = (run / "visits.png").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(header[16:20], "big") == 5 * mz.PIXELS
    assert "visits" in events(run).Tags()["images"]
    saved = np.load(run / "visits.npz")
    assert saved["path"].shape == (201, 2) and saved["visits"].sum() == 201
    assert saved["visits"].shape == (20, 20)


# ---------------------------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("method, bonus, dynamics", combinations("sac"))
def test_every_combination_runs(in_tmp, method, bonus, dynamics):
    result = mz.main(short(method=method, bonus=bonus, dynamics=dynamics))
    stored = json.loads((in_tmp / "runs" / "test" / "result.json").read_text())
    assert stored == result
    assert result["steps"] == result["total_timesteps"] == 200
    assert 0 < result["coverage"] < 1 and 0.45 < result["min_distance"] <= 2 and result["episodic_return"] == 0
    assert result["bonus"] == (bonus if method in ("be", "pts-be") else None)
    assert result["dynamics"] == (dynamics if method in ("be", "pts", "pts-be") else None)
    assert result["solved"] is (result["solved_step"] is not None)
    share = result["imagined_in_walls"]
    assert 0 <= share <= 1 if method in ("pts", "pts-be") else share is None
    assert (in_tmp / "runs" / "test" / "eig_map.png").exists() is (method in ("be", "pts", "pts-be"))


def path_of(run):
    return np.load(run / "visits.npz")["path"]


def seen_by_sac(monkeypatch, value):
    """What main hands to SAC.update when every state has the given value: a list that fills with batches."""
    batches = []
    monkeypatch.setattr(mz.SAC, "value", lambda self, state: torch.full((len(state),), value))
    monkeypatch.setattr(mz.SAC, "update", lambda self, *batch: batches.append(batch))
    monkeypatch.setattr(mz.SAC, "last_losses", lambda self: {})
    return batches


def test_stored_bonus_keeps_its_value_and_the_relabelled_one_does_not(in_tmp, monkeypatch):
    batches = seen_by_sac(monkeypatch, 0.0)
    for relabel in (False, True):
        batches.clear()
        result = mz.main(short(method="be", be_relabel=relabel, bonus="variance", policy_batch=200))
        assert result["be_relabel"] is relabel
        values = defaultdict(set)  # rewards under which a transition was learned
        for states, actions, returns in batches:
            for key, target in zip(torch.cat([states, actions], -1).tolist(), returns.tolist(), strict=True):
                values[tuple(key)].add(round(target, 4))
        several = sum(len(rewards) > 1 for rewards in values.values())
        assert several > 30 if relabel else several == 0
        first = values[tuple(torch.cat([batches[0][0], batches[0][1]], -1)[0].tolist())]
        assert 0 not in first if relabel else first == {0}  # collected before there was a model


def test_termination_cuts_the_bootstrap_and_truncation_does_not(in_tmp, monkeypatch):
    """Every state is worth 10: the target is 1 where the goal was reached and 9.7 elsewhere, resets included."""
    batches = seen_by_sac(monkeypatch, 10.0)
    run = {"method": "sac", "warmup_steps": 1980, "total_timesteps": 2000, "policy_batch": 8192, "gamma": 0.97}
    (in_tmp / "near.txt").write_text(NEAR)
    mz.main(short(**run, maze="near.txt", stop_at_goal=False))
    states, _, returns = batches[-1]
    assert sorted({round(target, 4) for target in returns.tolist()}) == [1, 9.7]
    near_goal = (states[:, 0] - mz.read_maze("near.txt").goal[0]).abs() < 0.45 + 0.3  # one hold away
    assert near_goal[returns == 1].all()

    mz.main(short(**run, reset_interval=50))
    states, _, returns = batches[-1]
    last = torch.as_tensor(path_of(in_tmp / "runs" / "test")[45])  # where the action before the first reset was taken
    truncated = (states[:, :2] == last).all(-1)
    assert truncated.any() and returns[truncated].tolist() == pytest.approx([9.7] * int(truncated.sum()))
    assert {round(target, 4) for target in returns.tolist()} == {9.7}


def test_tensorboard_and_pictures_hold_what_is_promised(in_tmp):
    result = mz.main(short(reset_interval=100))
    run = in_tmp / "runs" / "test"
    tags = events(run).Tags()
    promised = {f"bonus/{name}" for name in ("eig", "entropy", "error")}
    promised |= {f"losses/{name}" for name in ("dynamics_loss", "critic_loss", "actor_loss", "entropy", "value")}
    promised |= {f"charts/{name}" for name in ("coverage", "min_distance", "SPS", "imagined_in_walls")}
    promised |= {f"charts/{name}" for name in ("episodic_length", "episodic_return")}
    assert set(tags["scalars"]) == promised
    assert set(tags["images"]) == {"visits", "eig_map"}
    header = (run / "eig_map.png").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(header[16:20], "big") == 5 * mz.PIXELS
    shares = [event.value for event in events(run).Scalars("charts/imagined_in_walls")]
    assert result["imagined_in_walls"] == pytest.approx(np.mean(shares[-10:])) and 0 < max(shares) < 1


# Every flag and what it is changed to; the runs are of pts-be unless stated.
FLAGS = {
    **{"maze": "open", "total_timesteps": 100, "reset_interval": 40, "action_repeat": 10, "jitter": 0.1},
    **{"seed": 1002, "warmup_steps": 80, "policy_interval": 40, "model_interval": 40, "rollouts": 30, "horizon": 5},
    **{
        "lookahead": 0,
        "start_noise": 0.1,
        "input_noise": 0.1,
        "random_actions": 0.9,
        "planning_window": 1,
        "policy_updates": 3,
        "model_updates": 5,
    },
    **{"eta": 0.1, "eta_decay": 0.1, "ensemble_size": 3, "model_width": 24, "model_features": 24},
    **{"model_scale": 1.4, "prior_scale": 3.0, "prior_size": 1.0, "model_lr": 1e-3, "model_batch": 24},
    **{"eig_noise": 0.5, "eig_threshold": 0.0, "policy_width": 24, "policy_features": 24, "policy_scale": 2.0},
    **{"policy_lr": 1e-2, "policy_batch": 24, "gamma": 0.5, "lam": 0.1, "tau": 0.5, "temperature": 0.1},
    **{"autotune": True, "dynamics": "dk", "bonus": "variance", "method": "pts"},
}
GP_FLAGS = {"inducing_points": 8, "gp_eig_noise": 0.5, "gp_lr": 0.2, "gp_updates": 3}
OTHER_FLAGS = {"be_relabel", "stop_at_goal", "exp_name", "run_name", "cuda", "track", "capture_video", "save_model"}


def fingerprint(monkeypatch, **changes):
    """Everything that a run logs but its speed."""
    seen = []
    log = SimpleNamespace(add_text=lambda *_: None, close=lambda: None, add_scalar=lambda *point: seen.append(point))
    monkeypatch.setattr(mz, "SummaryWriter", lambda folder: log)
    mz.main(short(**{"total_timesteps": 120, **changes}))
    return [(tag, float(value), step) for tag, value, step in seen if tag != "charts/SPS"]


def test_every_flag_acts(in_tmp, monkeypatch):
    (in_tmp / "runs" / "test").mkdir(parents=True)
    monkeypatch.setattr(mz, "save_picture", lambda *_: None)
    for base, flags in (({}, FLAGS), ({"dynamics": "gp"}, GP_FLAGS)):
        standard = fingerprint(monkeypatch, **base)
        assert standard == fingerprint(monkeypatch, **base)
        same = [name for name, value in flags.items() if fingerprint(monkeypatch, **base, **{name: value}) == standard]
        assert not same
    assert {*FLAGS, *GP_FLAGS, *OTHER_FLAGS} == {field.name for field in fields(mz.Args)}  # the rest has its own tests


def test_flags_of_the_run(in_tmp, monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: calls.append(settings)))
    monkeypatch.setattr(mz, "find_spec", lambda _: True)
    mz.main(short(method="be", run_name=None, exp_name="trial", track=True, save_model=True))
    (run,) = (in_tmp / "runs").iterdir()
    assert run.name.startswith("PointMaze-u-shape__trial__1001__")
    assert calls[0]["name"] == run.name and calls[0]["config"]["method"] == "be"
    saved = torch.load(run / "model.pt")
    policy, dynamics = mz.SAC(2, short()), mz.PriorEnsemble(6, 5, short())
    policy.load_state_dict(saved["policy"])
    dynamics.load_state_dict(saved["dynamics"])
    assert dynamics.out_scale.scale.min() > 0 and not torch.equal(policy.critics.head, mz.SAC(2, short()).critics.head)


def test_same_seed_same_result_and_another_seed_another(in_tmp):
    results = []
    for seed in (1001, 1001, 1002):
        result = mz.main(short(seed=seed))
        result = {name: value for name, value in result.items() if name not in ("wall_time_s", "sps", "seed")}
        results.append((result, path_of(in_tmp / "runs" / "test").tolist()))
    assert results[0] == results[1]
    assert results[0][1] != results[2][1]


NEAR = "######\n#r.g.#\n######\n"  # a corridor in which random pushes arrive


def test_goal_ends_the_run_or_starts_a_new_episode(in_tmp):
    (in_tmp / "near.txt").write_text(NEAR)
    run = {"method": "random", "maze": "near.txt", "total_timesteps": 3000, "seed": 1001}
    first = mz.main(short(**run, run_name="a"))
    assert first["solved"] and first["steps"] == first["solved_step"] < 3000 and first["episodic_return"] == 1
    assert first["env"] == "PointMaze-near"
    on = mz.main(short(**run, run_name="b", stop_at_goal=False))
    assert on["solved_step"] == first["solved_step"] and on["steps"] == 3000 and on["episodic_return"] > 1
    lengths = events(in_tmp / "runs" / "b").Scalars("charts/episodic_length")
    returns = events(in_tmp / "runs" / "b").Scalars("charts/episodic_return")
    assert sum(event.value for event in returns) == on["episodic_return"]
    assert max(event.value for event in lengths) <= 1000


def test_the_shortest_run_logs_its_coverage(in_tmp):
    result = mz.main(short(method="random", total_timesteps=5))
    assert events(in_tmp / "runs" / "test").Scalars("charts/coverage")[-1].value == pytest.approx(result["coverage"])


def test_reset_interval_puts_the_ball_back(in_tmp):
    mz.main(short(method="random", reset_interval=50))
    lengths = events(in_tmp / "runs" / "test").Scalars("charts/episodic_length")
    assert [(event.step, event.value) for event in lengths] == [(50, 50), (100, 50), (150, 50), (200, 50)]


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"method": "pts-be", "bonus": "error"}, "needs the real next state"),
        ({"reset_interval": 0}, "--reset-interval is 0, it must be at least 1"),
        ({"tau": math.nan}, "--tau is nan"),
        ({"jitter": 0.4}, "--jitter is 0.4, it must be at most 0.25"),
        ({"warmup_steps": 64}, "--warmup-steps is 64, it must be a multiple of --action-repeat, 5"),
        ({"reset_interval": 12}, "--reset-interval is 12, it must be a multiple of --action-repeat, 5"),
        ({"total_timesteps": 201}, "--total-timesteps is 201, it must be a multiple"),
        ({"action_repeat": 7}, "it must be a multiple of --action-repeat, 7"),
        ({"policy_interval": 7}, "--policy-interval is 7"),
        ({"model_interval": 7}, "--model-interval is 7"),
        ({"rollouts": 0}, "--rollouts is 0, it must be at least 1"),
        ({"lookahead": -1}, "--lookahead is -1, it must be a number from 0 up"),
        ({"gamma": 1.01}, "--gamma is 1.01, it must be at most 1"),
        ({"lam": 1.5}, "--lam is 1.5, it must be at most 1"),
        ({"tau": 2.0}, "--tau is 2.0, it must be at most 1"),
        ({"random_actions": 1.5}, "--random-actions is 1.5, it must be at most 1"),
        ({"temperature": 0.0}, "--temperature is 0, it must be larger"),
        ({"prior_scale": 0.0}, "--prior-scale is 0, it must be larger"),
        ({"policy_lr": -1.0}, "--policy-lr is -1.0, it must be a number from 0 up"),
        ({"seed": -1}, "--seed is -1, it must be a number from 0 up"),
        ({"cuda": True}, "PyTorch sees no GPU"),
        ({"track": True}, "pip install wandb"),
        ({"capture_video": True}, "pip install moviepy"),
    ],
)
def test_bad_input_gets_one_line_and_status_2_and_writes_nothing(in_tmp, capsys, monkeypatch, flags, message):
    monkeypatch.setattr(mz, "find_spec", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert message in refused(capsys, lambda: mz.main(short(**flags)))
    assert not list(in_tmp.iterdir())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Gymnasium's, when it is deleted
def test_missing_renderer_gets_one_line_and_status_2_and_writes_nothing(in_tmp, capsys, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "")  # restored afterwards
    monkeypatch.setattr(mz, "find_spec", lambda _: True)
    monkeypatch.setattr(mz, "RENDERER", "nonsense")
    error = refused(capsys, lambda: mz.main(short(capture_video=True)))
    assert "--capture-video: MuJoCo cannot draw with MUJOCO_GL=nonsense" in error
    assert not list(in_tmp.iterdir())


def can_draw():
    code = f"import sys; sys.path.insert(0, {str(Path(mz.__file__).parent)!r}); import ptsbe_sac_maze as mz\n"
    code += "mz.check(mz.Args(capture_video=True))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_draw(), reason="needs moviepy and a renderer")
def test_video_of_the_last_episode(in_tmp, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "")  # restored afterwards
    seen, step = [], mz.gym.wrappers.RecordVideo.step

    def watched(self, action):
        outcome = step(self, action)
        seen.append(outcome[0][:2])
        return outcome

    monkeypatch.setattr(mz.gym.wrappers.RecordVideo, "step", watched)
    mz.main(short(method="random", capture_video=True, reset_interval=80, jitter=0.1))
    assert [path.suffix for path in (in_tmp / "runs" / "test" / "videos").iterdir()] == [".mp4"]
    path = np.load(in_tmp / "runs" / "test" / "visits.npz")["path"]
    np.testing.assert_array_equal(np.array(seen), path[161:])  # the same way again


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_what_was_learned(in_tmp, capsys, monkeypatch):
    monkeypatch.setattr(mz.SAC, "last_losses", lambda _: {"critic_loss": math.nan})
    with pytest.raises(SystemExit) as stop:
        mz.main(short(method="sac"))
    assert stop.value.code == 1
    assert "critic_loss is nan at step 60" in capsys.readouterr().err
    assert (in_tmp / "runs" / "test" / "model.pt").exists()
    assert not (in_tmp / "runs" / "test" / "result.json").exists()
