"""Point mazes: maps, the environment against its definition, models, SAC, imagination, pictures, short runs."""

import math
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from test_scripts import events, refused, short

import ptsbe_sac_maze as mz

U_SHAPE = mz.MAZES["u-shape"].replace("/", "\n")
NEAR = "######\n#r.g.#\n######\n"  # a corridor in which random pushes arrive


def run(**changes):
    return mz.main(short(mz, **changes))


def path_of(name="test"):
    """Visited positions in squares of the map, (steps, 2)."""
    return np.load(f"runs/{name}/path.npy")


# ---------------------------------------------------------------------------------------------------------------- maps

BAD_MAPS = {
    "empty": ("", "0 cells are marked r"),
    "ragged": ("#####\n#r.g#\n####\n#####", "row 3 has 4 cells and row 1 has 5"),
    "gap": ("#####\n\n#r.g#\n#####", "row 2 has 0 cells and row 1 has 5"),
    "no start": ("####\n#.g#\n####", "0 cells are marked r"),
    "two starts": (
        "#####\n#rg.#\n#..r#\n#####",
        "2 cells are marked r, it must be one; [row, column]: [[2, 2], [3, 4]]",
    ),
    "no goal": ("####\n#r.#\n####", "0 cells are marked g"),
    "goal walled in": ("#####\n#r#g#\n#####", "walls part the goal g in row 2, column 4 from the start"),
    "only a corner between": ("####\n#r##\n##g#\n####", "walls part the goal g in row 3, column 3"),
    "unknown character": ("#####\n#rXg#\n#####", "row 2, column 3 is 'X', it must be one of #.rg"),
    "open border, left": ("#####\n.r.g#\n#####", "row 2, column 1 is '.', it must be one of #:"),
    "open border, bottom": ("#####\n#r.g#\n##.##", "row 3, column 3 is '.', it must be one of #:"),
    "start at the border": ("#r###\n#..g#\n#####", "row 1, column 2 is 'r', it must be one of #:"),
}


@pytest.mark.parametrize("text, message", BAD_MAPS.values(), ids=BAD_MAPS)
def test_bad_map_gets_its_row_and_reason_and_writes_nothing(in_tmp, capsys, text, message):
    (in_tmp / "map.txt").write_text(text)
    error = refused(capsys, lambda: run(maze="map.txt"))
    assert "--maze map.txt" in error and message in error
    assert os.listdir(in_tmp) == ["map.txt"]


def test_what_is_no_map_is_refused(in_tmp, capsys):
    (in_tmp / "folder").mkdir()
    (in_tmp / "binary").write_bytes(b"\xff\xfe\x00#")
    before = sorted(os.listdir(in_tmp))
    for name, message in {"nothing": "No such file", "folder": "Is a directory", "binary": "can't decode"}.items():
        error = refused(capsys, lambda name=name: run(maze=name))
        assert message in error and "must be one of open, u-shape, double-u-shape, obstacles" in error
    assert sorted(os.listdir(in_tmp)) == before


@pytest.mark.parametrize("name", mz.MAZES)
def test_the_four_mazes(name):
    cells = mz.parse_map(mz.MAZES[name])
    assert mz.reachable(cells).sum() == (cells != "#").sum()  # no free cell is cut off


def test_a_map_file_is_the_maze_it_draws(in_tmp):
    for text in (U_SHAPE, U_SHAPE + "\n\n", U_SHAPE.replace("\n", " \r\n"), "\ufeff" + U_SHAPE):
        (in_tmp / "map.txt").write_bytes(text.encode())
        _, visits = mz.make_env(mz.Args(maze="map.txt"))
        assert visits.name == "PointMaze-map"
        np.testing.assert_array_equal(visits.free, mz.make_env(mz.Args())[1].free)


# --------------------------------------------------------------------------------------------------------- environment


def drive(env, actions, seed=0):
    """Paths (steps, 4), rewards, terminations and truncations of holds."""
    env.reset(seed=seed)
    paths, rest = [], []
    for action in actions:
        _, *outcome, info = env.step(np.asarray(action, dtype=np.float32))
        paths.append(info["path"])
        rest.append(outcome)
    return np.concatenate(paths), *map(np.array, zip(*rest, strict=True))


def random_pushes(count, hold=20, seed=0):
    """Full force in random directions, each held for a while: such a ball gets far and hits walls hard."""
    return np.random.default_rng(seed).choice([-1.0, 0.0, 1.0], (count // hold, 2)).repeat(hold, 0)


def environment(maze="u-shape", **changes):
    return mz.make_env(mz.Args(maze=maze, **changes))


def metres(visits, squares):
    return (squares - visits.size / 2) * (mz.CELL / mz.PARTS, -mz.CELL / mz.PARTS)


@pytest.mark.parametrize("name", mz.MAZES)
def test_start_and_goal_are_those_of_the_map_and_do_not_move(name):
    env, visits = environment(name)
    for seed in range(3):
        state, _ = env.reset(seed=seed)
        assert state.dtype == np.float32 and env.observation_space.contains(state)
        np.testing.assert_allclose(state, [*metres(visits, visits.start), 0, 0], atol=1e-6)
        np.testing.assert_allclose(env.unwrapped.goal, metres(visits, visits.goal))


def test_reward_is_1_within_the_radius_of_the_goal_and_ends_the_episode():
    env, visits = environment("open", action_repeat=1)
    env.reset(seed=0)
    rng, seen, goal = np.random.default_rng(0), set(), metres(visits, visits.goal)
    for _ in range(300):
        env.unwrapped.point_env.set_state(goal + rng.uniform(-1, 0.3, 2) * (1, -1), np.zeros(2))
        state, reward, terminated, truncated, _ = env.step(np.zeros(2, np.float32))
        distance = np.linalg.norm(state[:2] - goal)
        if abs(distance - 0.45) > 1e-5:
            assert reward == (1.0 if distance < 0.45 else 0.0) and terminated == (distance < 0.45) and not truncated
            seen.add(reward)
    assert seen == {0.0, 1.0}


def test_an_action_is_held_and_velocities_come_in_thirds():
    held, _ = environment(action_repeat=10)
    single, _ = environment(action_repeat=1)
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 2))
    path, *_ = drive(held, actions)
    again, *_ = drive(single, actions.repeat(10, 0))
    assert path.shape == (200, 4)
    np.testing.assert_array_equal(path, again)
    raw = np.concatenate([single.unwrapped.data.qpos, single.unwrapped.data.qvel / 3])
    np.testing.assert_allclose(again[-1], raw, rtol=1e-6)


def test_a_hold_sums_its_rewards_and_ends_with_the_episode():
    class Counter(mz.gym.Env):
        observation_space = action_space = mz.gym.spaces.Box(-1, 1, (1,))

        def step(self, action):
            self.count += 1
            return np.full(1, self.count), float(self.count), self.count == 13, False, {}

    env = mz.Hold(Counter(), 10)
    env.unwrapped.count = 0
    assert env.step(np.zeros(1))[1:4] == (55.0, False, False)
    state, reward, terminated, _, info = env.step(np.zeros(1))
    assert (state[0], reward, terminated) == (13, 11 + 12 + 13, True) and info["path"].ravel().tolist() == [11, 12, 13]


def test_reset_interval_truncates_and_does_not_terminate():
    env, _ = environment(reset_interval=30)
    _, rewards, terminated, truncated = drive(env, np.zeros((3, 2)))
    assert not terminated.any() and not rewards.any() and truncated.tolist() == [False, False, True]


@pytest.mark.parametrize("name", mz.MAZES)
def test_walls_hold(name):
    env, visits = environment(name, reset_interval=10_000, action_repeat=1)
    states, *_ = drive(env, random_pushes(3000))
    visits.add(states, 0)
    assert visits.free[visits.visited].all() and visits.metrics()["coverage"] > 0.03
    assert np.abs(states[:, 2:]).max() > 4 / 3  # it did run into them at speed


def test_no_file_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment("open")[0].close()
    assert not os.listdir(tmp_path)


def test_visits_count_reachable_squares_and_tell_the_distance():
    visits = mz.Visits("some", mz.parse_map("######\n#rg#.#\n######"))  # the last cell cannot be reached
    probes = visits.probes()
    assert probes.shape == (2 * mz.PARTS**2, 6) and (probes[:, 2:] == 0).all()
    for count, probe in enumerate(probes, 1):
        visits.add(probe[None], count)
        assert visits.metrics()["coverage"] == pytest.approx(count / 32)
    assert visits.min_distance == pytest.approx(math.sqrt(2) / 8) and visits.solved_step is None
    for step in (40, 50):
        visits.add(probes[:3], step, terminated=True)
    assert visits.metrics()["solved_step"] == 40
    np.testing.assert_allclose(probes[0, :2], [-2 + 0.125, 0.5 - 0.125])  # top left: x to the right, y upwards


# ------------------------------------------------------------------------------------------------------ dynamics models


def test_fourier_features_have_the_rbf_kernel():
    torch.manual_seed(0)
    features = mz.FourierFeatures(2, 2, 10_000, length_scale=0.7)
    x = torch.rand(2, 30, 5) * 3
    seen = features(x)  # (2, 30, features)
    kernel = torch.exp(-0.5 * (torch.cdist(x[..., :2], x[..., :2]) / 0.7).square())
    torch.testing.assert_close(seen @ seen.mT / 10_000, kernel, atol=0.04, rtol=0)
    assert not torch.equal(features.frequencies[0], features.frequencies[1])


def free_motion(count, centre=(0.0, 0.0), seed=0):
    """Transitions of a ball without walls within 1 m of a centre: dx = 0.05 v, dv = a, no reward, no end."""
    torch.manual_seed(seed)
    position = torch.tensor(centre) + 2 * torch.rand(count, 2) - 1
    velocity, action = torch.randn(count, 2), 2 * torch.rand(count, 2) - 1
    x = torch.cat([position, velocity, action], -1)
    return x, torch.cat([0.05 * velocity, action, torch.zeros(count, 2)], -1)


def model(dynamics="de", **changes):
    torch.manual_seed(0)
    args = mz.Args(**{"dynamics": dynamics, **mz.TUNED.get(dynamics, {}), **changes})
    return (mz.PriorEnsemble if dynamics == "de" else mz.SparseGP)(6, 6, args)


def eig(dynamics, x):
    return mz.bonuses(dynamics, *dynamics.predict(x))["eig"].mean()


@pytest.mark.parametrize("dynamics, steps", [("de", 300), ("gp", 60), ("dk", 60)])
def test_eig_falls_on_held_out_transitions_and_stays_away_from_the_data(dynamics, steps):
    (held_out, _), (away, _) = free_motion(200, seed=1), free_motion(200, (6.0, 6.0))
    known = []
    for count in (10, 400):
        x, y = free_motion(count)
        fitted = model(dynamics, eig_noise=0.5)
        fitted.fit(x, y + 0.01 * torch.randn_like(y), steps)
        known.append(eig(fitted, held_out))
    assert known[1] < 0.6 * known[0] and eig(fitted, away) > 1.5 * known[1]


def test_members_disagree_by_their_priors_but_not_on_reward_and_end():
    away, _ = free_motion(200, (5.0, 5.0))
    for size, expected in ((3.0, True), (0.0, False)):
        ensemble = model(prior_size=size)
        ensemble.fit(*free_motion(400), 300)
        spread = (ensemble.predict(away)[0] / ensemble.out_scale.scale).std(0).mean(0)  # (D,)
        assert (spread[:4] > 1).all() == expected and (spread[4:] < 1).all()


def test_visits_leave_of_a_prior_what_a_linear_solve_does_and_its_mean_over_members_is_0():
    """A place that was visited n times keeps the share r / (r + n |f|^2) of its prior, with f its features."""
    ensemble, (x, y) = model(), free_motion(1)
    features = ensemble.place(x[None])[0]  # (1, F)
    before = features @ ensemble.draws  # (M, 1, D)
    assert before[..., :4].std(0).min() > 0.5
    for count in (1, 100):
        ensemble.fit(x.expand(count, -1), y.expand(count, -1), 1)
        ridge = ensemble.PLACE_NOISE * mz.PLACE_FEATURES
        share = ridge / (ridge + count * features.square().sum())
        after = ensemble.place(x[None]) @ ensemble.weights
        torch.testing.assert_close(after[..., :4], share * before[..., :4], atol=1e-4, rtol=1e-3)
        assert (ensemble.place(torch.randn(1, 50, 6)) @ ensemble.weights).mean(0)[:, :4].abs().max() < 1e-4


def test_a_wall_is_learned_from_rare_contacts():
    """A ball in x stops at 0.5; one transition of twenty touches the wall. The likelihood alone calls that noise."""
    torch.manual_seed(2)
    count = 1000
    position, velocity = 2 * torch.rand(count) - 1.5, 2 + 2 * torch.rand(count)  # the wall is the right end
    x = torch.zeros(count, 6)
    x[:, 0], x[:, 2] = position, velocity / 3
    x[:, 3:] = 0.3 * torch.randn(count, 3)
    x = x[(position + 0.1 * velocity < 0.5) | (torch.rand(count) < 0.3)]
    y, speed = torch.zeros(len(x), 6), 3 * x[:, 2]
    hit = x[:, 0] + 0.1 * speed > 0.5
    y[:, 0] = torch.where(hit, 0.5 - x[:, 0], 0.1 * speed)
    y[:, 2] = torch.where(hit, -x[:, 2], torch.zeros(len(x)))
    assert 0.02 < hit.float().mean() < 0.1
    ensemble = model()
    for _ in range(3):
        ensemble.fit(x, y, 300)
    fast = torch.tensor([[0.4, 0.0, 3.5 / 3, 0.0, 0.0, 0.0], [-0.5, 0.0, 3.5 / 3, 0.0, 0.0, 0.0]])  # near, far off
    mean = ensemble.predict(fast)[0].mean(0)  # (2, D)
    assert mean[:, 0].tolist() == pytest.approx([0.1, 0.35], abs=0.08)
    assert mean[:, 2].tolist() == pytest.approx([-3.5 / 3, 0.0], abs=0.25)


@pytest.mark.parametrize("dynamics", ["de", "gp"])
def test_predictions_are_close_and_imagined_outcomes_lie_within_what_was_seen(dynamics):
    x, y = free_motion(300)
    fitted = model(dynamics)
    fitted.fit(x, y, 600 if dynamics == "de" else 50)
    mean, var = fitted.predict(x)
    assert mean.shape == var.shape == (5 if dynamics == "de" else 1, 300, 6) and mean.dtype == torch.float32
    assert (mean.mean(0) - y)[:, :4].abs().mean() < 0.15 and (var > 0).all()
    found = mz.bonuses(fitted, mean, var, y)
    assert set(found) == {"eig", "entropy", "variance", "error"} and all(v.shape == (300,) for v in found.values())
    away, args = free_motion(100, (9.0, 9.0))[0][:, :4], mz.Args()
    for sample in (False, True):
        states = mz.imagine(mz.SAC(4, 2, args), fitted, away, 3, 1.0, args, sample)[0].view(3, 100, 4)
        moved = states.diff(dim=0)
        assert (moved >= y.amin(0)[:4] - 1e-5).all() and (moved <= y.amax(0)[:4] + 1e-5).all()


def test_the_gp_is_fitted_to_the_newest_rows_and_a_part_of_the_others(monkeypatch):
    seen, fit = [], mz.SVGP.fit
    monkeypatch.setattr(mz.SVGP, "fit", lambda self, x, y, *rest: seen.append(x) or fit(self, x[:50], y[:50], 0))
    x = torch.arange(5000.0)[:, None].expand(-1, 6)
    model("gp").fit(x, x, 1)
    rows = seen[0][:, 0]
    assert len(rows) == 2000 and len(rows.unique()) == 2000 and set(range(4000, 5000)) <= set(rows.int().tolist())
    model("gp").fit(x[:1500], x[:1500], 1)
    assert torch.equal(seen[1], x[:1500])


def test_small_disagreements_count_little():
    mean, var = 0.1 * torch.randn(5, 50, 6), torch.full((5, 50, 6), 1e-4)
    torch.testing.assert_close(mz.bonuses(model(eig_noise=0.0), mean, var)["eig"], mz.mixture_eig(mean, var))
    assert mz.bonuses(model(), mean, var)["eig"].max() < 0.05 < mz.mixture_eig(mean, var).min()


def test_a_bonus_of_ones_own_is_a_line_in_bonuses(in_tmp):
    """The worked example: copy the script, name the bonus in Args, compute it in `bonuses`."""
    source = Path(mz.__file__).read_text()
    line = '    found["noise"] = total.log().mean(-1)  # a bonus of my own\n'
    edits = {
        '"variance", "error"] = "eig"': '"variance", "error", "noise"] = "eig"',
        "    if y is not None:\n": line + "    if y is not None:\n",
    }
    for old, new in edits.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    (in_tmp / "mine.py").write_text(source)
    flags = ["--bonus", "noise", "--total-timesteps", "160", "--model-updates", "2", "--run-name", "mine"]
    environment = {**os.environ, "PYTHONPATH": str(Path(mz.__file__).parent)}
    subprocess.run([sys.executable, "mine.py", *flags], check=True, env=environment)
    assert "bonus/noise" in events(in_tmp / "runs" / "mine").Tags()["scalars"]


# ----------------------------------------------------------------------------------------------------------------- SAC


def small_sac(action_dim=1, **changes):
    torch.manual_seed(0)
    return mz.SAC(4, action_dim, mz.Args(**changes))


def batch_of(count=256):
    torch.manual_seed(1)
    return torch.randn(count, 4), torch.rand(count, 1) * 2 - 1


def test_density_of_the_actor_against_numerical_integration():
    """exp(log_prob) of sampled actions against the tanh-Gaussian by a change of variables on a grid, in 1-D.

    Both relative to the uniform density, 1 / 2.
    """
    policy = small_sac().double()
    with torch.no_grad():
        policy.actor.layers[-1].copy_(torch.tensor([0.4, 0.3]))  # mean and deviation not those of 0
    code = policy.encode(torch.randn(1, 4, dtype=torch.float64))
    with torch.no_grad():
        action, log_prob = policy.sample(code.expand(20_000, -1))
    mean, raw = policy.actor(code[None])[0, 0].detach()
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
    torch.testing.assert_close(policy.sample(code, spread=False)[0][0], mean.tanh()[None])


def test_density_holds_for_extreme_actions():
    policy = small_sac(2)
    with torch.no_grad():
        policy.actor.layers[-1].copy_(torch.tensor([40.0, -40.0, 20.0, -90.0]))
    action, log_prob = policy.sample(policy.encode(torch.zeros(100, 4)))
    log_prob.sum().backward()
    assert (action.abs() <= 1).all() and log_prob.isfinite().all()
    assert all(p.grad.isfinite().all() for p in policy.actor.parameters())


def test_value_and_losses_are_those_of_the_equations():
    """V = min_i Q_i' - alpha log pi, critics' loss sum_i (Q_i - R)^2, actor's alpha log pi - min_i Q_i, same draws."""
    policy = small_sac(temperature=0.3)
    with torch.no_grad():
        for parameter in policy.targets.parameters():
            parameter.mul_(1.5)  # not the critics
    (states, actions), returns = batch_of(), torch.randn(256)
    with torch.no_grad():
        code = policy.encode(states)
        torch.manual_seed(5)
        new_actions, log_prob = policy.sample(code)
        value = torch.minimum(*policy.quality(policy.targets, code, new_actions)) - 0.3 * log_prob
        critic_loss = sum((q - returns).square().mean() for q in policy.quality(policy.critics, code, actions))
        actor_loss = (0.3 * log_prob - torch.minimum(*policy.quality(policy.critics, code, new_actions))).mean()
    torch.manual_seed(5)
    torch.testing.assert_close(policy.value(states), value)
    torch.manual_seed(5)
    losses = policy.update(states, actions, returns)
    assert losses["critic"].item() == pytest.approx(float(critic_loss), rel=1e-4)
    assert losses["actor"].item() == pytest.approx(float(actor_loss), rel=1e-4)
    assert losses["entropy"].mean().item() == pytest.approx(float(-log_prob.mean()), rel=1e-4)


def test_critics_learn_the_value_of_a_reward_for_ever():
    """Reward 1 for ever is worth 1 / (1 - gamma)."""
    policy = small_sac(temperature=1e-6)
    states, actions = batch_of()
    for _ in range(400):
        policy.update(states, actions, 1 + 0.5 * policy.value(states))
    assert policy.value(states).mean().item() == pytest.approx(2, abs=0.1)


def test_sac_learns_which_action_pays():
    policy = small_sac(temperature=0.01)
    for _ in range(400):
        states, actions = torch.randn(128, 4), torch.rand(128, 1) * 2 - 1
        policy.update(states, actions, -(actions[:, 0] - 0.5 * states[:, 2].sign()).square())
    states = torch.tensor([[0.0, 0.0, 1.5, 0.0], [0.0, 0.0, -1.5, 0.0]])
    actions, log_prob = policy.act(states.repeat(200, 1))
    assert log_prob.shape == (400,)
    assert actions.view(200, 2).mean(0).tolist() == pytest.approx([0.5, -0.5], abs=0.25)


def test_targets_follow_and_are_not_trained():
    policy = small_sac()
    before = [p.clone() for p in policy.targets.parameters()]
    policy.update(*batch_of(), torch.ones(256))
    for old, target, critic in zip(before, policy.targets.parameters(), policy.critics.parameters(), strict=True):
        torch.testing.assert_close(target, old + policy.TAU * (critic - old))
    assert any(not torch.equal(old, target) for old, target in zip(before, policy.targets.parameters(), strict=True))


def test_temperature_is_fixed_unless_tuned_towards_the_target_entropy():
    for tuned in (False, True):
        policy = small_sac(policy_lr=1e-2, temperature=0.0 if tuned else 0.2)
        for _ in range(20):
            policy.update(*batch_of(), torch.zeros(256))
        temperature = policy.log_temperature.exp().item()
        # the entropy starts far above the target, so that the temperature must fall
        assert temperature < 0.19 if tuned else temperature == pytest.approx(0.2)


# --------------------------------------------------------------------------------------------------------- imagination


class Corridor(torch.nn.Module):
    """A known world: every action moves the ball by 1 m, and at 3 m is the goal; EIG is as given."""

    out_scale, seen = mz.Standardizer(6), torch.tensor([[-9.0] * 6, [9.0] * 6])

    def __init__(self, eig=0.0):
        super().__init__()
        self.value = eig

    def predict(self, x):
        y = torch.zeros(1, len(x), 6)
        y[..., 0], y[..., -2], y[..., -1] = 1, 5 * (x[:, 0] == 2), x[:, 0] == 2
        return y, torch.zeros_like(y)

    def eig(self, mean, var):
        return torch.full((mean.shape[1],), self.value)


def imagined(monkeypatch, dynamics, eta=1.0, value=8.0, sample=True, rollouts=2, **changes):
    args = mz.Args(**{"gamma": 0.5, "temperature": 1e-20, **changes})
    monkeypatch.setattr(mz.SAC, "value", lambda self, state: torch.full((len(state),), value))
    outcome = mz.imagine(mz.SAC(4, 2, args), dynamics, torch.zeros(rollouts, 4), 5, eta, args, sample)
    return [part.unflatten(0, (5, rollouts)) for part in outcome]


def test_a_trajectory_stays_in_its_world_or_follows_their_mean(monkeypatch):
    """Members that move the ball by 0 to 4 m: row k shows the same member at every step."""
    worlds = Corridor()
    worlds.predict = lambda x: (torch.arange(5.0).view(5, 1, 1).expand(5, len(x), 6), torch.zeros(5, len(x), 6))
    states, _, _ = imagined(monkeypatch, worlds, rollouts=10)
    assert states[1, :, 0].tolist() == [0, 1, 2, 3, 4] * 2
    torch.testing.assert_close(states[4], 4 * states[1])
    states, _, _ = imagined(monkeypatch, worlds, sample=False)
    assert states[:, 0, 0].tolist() == [0, 2, 4, 6, 8]


def test_the_entropy_of_later_actions_counts(monkeypatch):
    monkeypatch.setattr(
        mz.SAC, "act", lambda self, state: (torch.zeros(len(state), 2), torch.full((len(state),), -3.0))
    )
    *_, returns = imagined(monkeypatch, Corridor(), eta=0.0, temperature=0.1)
    assert returns[3:, 0].tolist() == pytest.approx([0.5 * (4.0 + 0.3), 4.0])


@pytest.mark.parametrize("sample", [True, False])
def test_imagined_trajectories_follow_the_model_and_end_where_it_says(monkeypatch, sample):
    states, actions, returns = imagined(monkeypatch, Corridor(), sample=sample)
    assert states[..., 0].tolist() == [[j, j] for j in range(5)] and actions.shape == (5, 2, 2)
    column = torch.tensor([[1.25], [2.5], [5.0], [2.0], [4.0]])  # what lies beyond the goal counts only from there
    torch.testing.assert_close(returns, column.expand(5, 2))


def test_bonus_adds_to_the_reward_and_survival_discounts_what_follows(monkeypatch):
    eig = math.log(2)
    for eta, survival, last, before in (
        (0.0, True, 4.0, 2.0),  # no bonus: EIG does not act
        (1.0, True, eig + 2.0, eig + (eig + 2.0) / 4),
        (3.0, True, 3 * eig + 2.0, 3 * eig + (3 * eig + 2.0) / 4),
        (1.0, False, eig + 4.0, eig + (eig + 4.0) / 2),
    ):
        *_, returns = imagined(monkeypatch, Corridor(eig), eta, survival=survival)
        assert returns[3:, 0].tolist() == pytest.approx([before, last])


def test_a_share_of_the_imagined_actions_is_random():
    torch.manual_seed(0)
    args = mz.Args(random_actions=0.5)
    policy = mz.SAC(4, 2, args)
    policy.act = lambda state: (torch.full((len(state), 2), 0.25), torch.zeros(len(state)))
    _, actions, _ = mz.imagine(policy, Corridor(), torch.zeros(100, 4), 5, 1.0, args)
    own = (actions == 0.25).all(-1)
    assert 0.4 < own.float().mean() < 0.6
    assert (actions.abs() <= 1).all() and actions[~own].std() == pytest.approx(1 / math.sqrt(3), abs=0.05)


def test_a_batch_mixes_real_and_imagined_transitions():
    x, y = torch.randn(50, 6), torch.zeros(50, 6)
    y[:25, -1] = 1  # an end
    args = mz.Args(real_share=0.25, gamma=0.5)
    policy = mz.SAC(4, 2, args)
    policy.value = lambda state: torch.full((len(state),), 8.0)
    made = torch.zeros(30, 4), torch.zeros(30, 2), torch.full((30,), 7.0)
    for imagined, count in ((made, 192), ([part[:0] for part in made], 0)):
        found = [mz.draw(policy, x, y, torch.ones(50), imagined, args) for _ in range(20)]
        states, actions, returns = (torch.cat(column) for column in zip(*found, strict=True))
        assert len(returns) == 256 * len(found)
        assert (returns == 7.0).sum() == count * len(found)
        assert set(returns.tolist()) == {1.0, 5.0} | set(imagined[2].tolist())
        ended = (torch.cat([states, actions], -1)[:, None] == x[:25]).all(-1).any(1)
        assert torch.equal(ended, returns == 1.0)


def test_planning_starts_here_and_in_visited_states(in_tmp, monkeypatch):
    starts, imagine = [], mz.imagine
    monkeypatch.setattr(
        mz,
        "imagine",
        lambda policy, dynamics, start, *rest: starts.append(start) or imagine(policy, dynamics, start, *rest),
    )
    for share in (0.0, 0.67, 1.0):
        starts.clear()
        run(replayed_starts=share, lookahead=0, rollouts=100, run_name=f"share-{share}")
        distinct = [len(start.unique(dim=0)) for start in starts]
        assert max(distinct) == 1 if share == 0 else min(distinct) > 2
        repeated = [int(start.unique(dim=0, return_counts=True)[1].max()) for start in starts]
        assert all(20 < count < 70 for count in repeated[2:]) if share == 0.67 else True


def test_the_ball_takes_the_first_action_of_the_best_trajectory(in_tmp, monkeypatch):
    """From its present state, over the stated number of actions, by the mean of the members."""
    calls, taken, imagine, step = [], [], mz.imagine, mz.Hold.step

    def watched(policy, dynamics, start, horizon, eta, args, sample=True):
        outcome = imagine(policy, dynamics, start, horizon, eta, args, sample)
        if not sample:
            calls.append((start, horizon, outcome))
        return outcome

    monkeypatch.setattr(mz, "imagine", watched)
    monkeypatch.setattr(mz.Hold, "step", lambda self, action: taken.append(action) or step(self, action))
    run(lookahead=3, rollouts=15)
    assert len(taken) == 16 and len(calls) == 10  # steps 60 to 160
    for action, (start, horizon, (_, actions, returns)) in zip(taken[6:], calls, strict=True):
        assert start.shape == (15, 4) and len(start.unique(dim=0)) == 1 and horizon == 3
        np.testing.assert_array_equal(action, actions[returns[:15].argmax()].numpy())


# ---------------------------------------------------------------------------------------------------------------- runs


def test_only_the_steps_asked_for_are_taken_in_the_real_environment(in_tmp, monkeypatch):
    """Imagination, bonuses and pictures do not touch it."""
    calls, step = [], mz.Hold.step
    monkeypatch.setattr(mz.Hold, "step", lambda self, action: calls.append(1) or step(self, action))
    for method in ("random", "sac", "be", "pts", "pts-be"):
        calls.clear()
        run(method=method, run_name=method)
        assert len(calls) == 16 and len(path_of(method)) == 161


def test_goal_ends_the_run_or_starts_a_new_episode(in_tmp):
    (in_tmp / "near.txt").write_text(NEAR)
    settings = {"method": "random", "maze": "near.txt", "total_timesteps": 3000}
    first = run(**settings, run_name="a", stop_at_goal=True)
    assert first["solved"] and first["steps"] == first["solved_step"] < 3000 and first["episodic_return"] == 1
    assert first["min_distance"] == pytest.approx(0.44, abs=0.02) and first["env"] == "PointMaze-near"
    on = run(**settings, run_name="b", stop_at_goal=False)
    assert on["solved_step"] == first["solved_step"] and on["steps"] >= 3000 and on["episodic_return"] > 1
    logged = events(in_tmp / "runs" / "b")
    assert sum(event.value for event in logged.Scalars("charts/episodic_return")) == on["episodic_return"]
    lengths = logged.Scalars("charts/episodic_length")
    assert max(event.value for event in lengths) <= 1000
    steps = [event.step for event in lengths]  # one episode begins where another ends
    assert [event.value for event in lengths] == np.diff([0, *steps]).tolist() and on["solved_step"] in steps


def test_reset_interval_puts_the_ball_back(in_tmp):
    run(method="random", reset_interval=50)
    lengths = events(in_tmp / "runs" / "test").Scalars("charts/episodic_length")
    assert [(event.step, event.value) for event in lengths] == [(50, 50), (100, 50), (150, 50)]
    path = path_of()
    assert len(path) == 161 + 3 and (path[[0, 51, 102, 153]] == path[0]).all()


def test_real_ends_cut_the_bootstrap_and_truncations_do_not(in_tmp, monkeypatch):
    """Every state is worth 10: the target is 1 where the goal was reached and 9.7 elsewhere, resets included."""
    targets = defaultdict(int)
    monkeypatch.setattr(mz.SAC, "value", lambda self, state: torch.full((len(state),), 10.0))
    update = mz.SAC.update

    def watched(self, states, actions, returns):
        for value in returns.tolist():
            targets[round(value, 4)] += 1
        return update(self, states, actions, returns)

    monkeypatch.setattr(mz.SAC, "update", watched)
    (in_tmp / "near.txt").write_text(NEAR)
    settings = {"method": "sac", "warmup_steps": 1980, "total_timesteps": 2000}
    run(**settings, maze="near.txt", stop_at_goal=False)
    assert set(targets) == {1.0, 9.7}
    targets.clear()
    run(**settings, reset_interval=50, run_name="truncated")
    assert set(targets) == {9.7}


# Every flag and what it is changed to; the runs are of pts-be unless stated. Those of the run have tests of their own.
FLAGS = {"maze": "open", "total_timesteps": 100, "reset_interval": 40, "action_repeat": 5, "seed": 1002}
FLAGS |= {"warmup_steps": 80, "policy_interval": 40, "model_interval": 40, "rollouts": 20, "horizon": 5, "lookahead": 3}
FLAGS |= {"replayed_starts": 0.7, "random_actions": 0.9, "survival": False, "real_share": 0.5, "policy_updates": 3}
FLAGS |= {"model_updates": 5, "eta": 0.1, "eta_decay": 0.1, "ensemble_size": 3, "position_dims": 3, "prior_size": 1.0}
FLAGS |= {"eig_noise": 0.5, "policy_lr": 1e-2, "gamma": 0.5, "temperature": 0.0, "eig_outputs": 2}
FLAGS |= {"dynamics": "dk", "bonus": "variance", "method": "pts"}
OTHERS = "stop_at_goal run_name eval_episodes cuda track wandb_project_name wandb_entity capture_video save_model"


def fingerprint(name, **changes):
    """Everything that a run logs but its speed."""
    run(**{"total_timesteps": 120, "run_name": name, **changes})
    logged = events(Path("runs", name))
    tags = [tag for tag in logged.Tags()["scalars"] if tag != "charts/SPS"]
    return {tag: [(event.step, event.value) for event in logged.Scalars(tag)] for tag in tags}


def test_every_flag_acts(in_tmp):
    standard = fingerprint("standard")
    assert standard == fingerprint("again")
    assert [name for name, value in FLAGS.items() if fingerprint(name, **{name: value}) == standard] == []
    assert {*FLAGS, *OTHERS.split()} == {field.name for field in fields(mz.Args)}


# ------------------------------------------------------------------------------------------------------------ pictures


def test_picture_shows_walls_floor_start_goal_and_path():
    visits = mz.Visits("u", mz.parse_map(U_SHAPE))
    visits.add(np.stack([np.linspace(-1, 1, 101), np.full(101, 0.8)], -1), 100)
    picture = visits.picture("a title")
    assert picture.shape == (730, 640, 3) and picture.dtype == np.uint8

    def at(x, y):
        column, row = (np.array([x, -y]) * mz.PARTS + visits.size / 2) * 30 + (20, 50)
        return picture[int(row), int(column)].tolist()

    assert at(-2, 2) == at(-1, 0) == visits.WALL.tolist()
    assert at(1, 0) == at(0, -1) == visits.FLOOR.tolist()
    assert np.abs(np.subtract(at(0.98, 0.8), visits.LATE)).max() < 9  # the last colour at the end
    assert np.abs(np.subtract(at(-0.5, 0.8), visits.EARLY)).max() < 70
    assert (picture[:50] < 100).any() and (picture[-40:] < 100).any()  # title and scale have words


def test_picture_of_eig_is_white_at_0_and_hottest_at_the_largest():
    visits = mz.Visits("open", mz.parse_map(mz.MAZES["open"]))
    visits.add(np.zeros((1, 4)), 0)
    eig = np.zeros(len(visits.probes()))
    eig[37] = 7.0
    picture = visits.picture("EIG", eig)
    column, row = (visits.probes()[37, :2] * (1, -1) * mz.PARTS + visits.size / 2) * 600 / visits.size.max() + (20, 50)
    assert picture[int(row), int(column)].tolist() == visits.HOT.tolist()
    assert picture[int(row), int(column) + 50].tolist() == visits.FLOOR.tolist()


@pytest.mark.parametrize("rows, columns", [(3, 400), (400, 3), (300, 250)])
def test_a_picture_of_a_huge_map_is_of_the_usual_size(rows, columns):
    cells = np.full((rows, columns), "#")
    cells[1:-1, 1:-1] = "."
    cells[1, 1], cells[-2, -2] = "r", "g"
    visits = mz.Visits("huge", cells)
    visits.add(np.zeros((5, 4)), 0)
    for picture in (visits.picture("path"), visits.picture("EIG", np.ones(visits.free.sum()))):
        assert max(picture.shape) <= 1000 and min(picture.shape[:2]) > 100


def can_draw():
    code = "import ptsbe_sac_maze as mz; env, _ = mz.make_env(mz.Args(), 'rgb_array'); env.reset(); env.render()"
    settings = {"cwd": Path(mz.__file__).parent, "capture_output": True, "check": False}
    return subprocess.run([sys.executable, "-c", code], **settings).returncode == 0


@pytest.mark.skipif(not can_draw(), reason="needs a renderer")
def test_video_of_an_episode_shows_the_whole_maze_from_above(in_tmp, monkeypatch):
    pytest.importorskip("moviepy")
    run(capture_video=True, reset_interval=80)
    assert [path.suffix for path in (in_tmp / "runs" / "test" / "videos").iterdir()] == [".mp4"]
    env, _ = mz.make_env(mz.Args(maze="obstacles"), "rgb_array")
    env.reset()
    frame = env.render().astype(int)
    border = np.concatenate([frame[0], frame[-1], frame[:, 0], frame[:, -1]])
    assert frame.std() > 10 and np.abs(border - border.mean(0)).mean() < 20  # walls end within the picture
    env.close()
