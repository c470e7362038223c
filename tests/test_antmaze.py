"""Ant mazes: walls and goal, what the ant sees, changes seen from its heading, what EIG counts."""

import math

import ant_model
import ant_values
import mujoco
import numpy as np
import plot
import pytest
import torch

import ptsbe_sac_antmaze as ant


def environment(maze="small-open", **changes):
    return ant.make_env(ant.Args(maze=maze, **changes))


def place(env, xy=(0.0, 0.0), height=0.75, quaternion=(1, 0, 0, 0), velocity=(0, 0, 0)):
    """Put the ant somewhere in the simulator, its joints at rest."""
    base = env.unwrapped.ant_env
    base.set_state(np.array([*xy, height, *quaternion, *[0] * 8]), np.array([*velocity, *[0] * 11]))
    return ant.observe(base.data)


def about(axis, angle):
    return (math.cos(angle / 2), *(math.sin(angle / 2) * np.array(axis)))


def drive(env, steps, seed=0):
    """States, actions and next states of random holds."""
    rows, (state, _) = [], env.reset(seed=seed)
    while sum(len(path) for *_, path in rows) < steps:
        action = env.action_space.sample()
        after, _, terminated, truncated, info = env.step(action)
        rows.append((state, action, after, info["path"]))
        state = env.reset()[0] if terminated or truncated else after
    return [np.stack(column) for column in list(zip(*rows, strict=True))[:3]] + [np.concatenate([r[3] for r in rows])]


def outside(env, xy):
    """How many positions (n, 2), in m, are not in the maze of 3 x 3 cells."""
    return int((np.abs(xy) > 1.5 * ant.CELL).any(-1).sum())


# --------------------------------------------------------------------------------------------------------- environment


def test_no_ant_thrown_at_a_wall_gets_out():
    env, _ = environment(action_repeat=1)
    env.reset(seed=0)
    left = 0
    for height in np.linspace(0.5, 8, 8):
        for angle in np.linspace(0, 2 * math.pi, 8, endpoint=False):
            place(
                env,
                4 * np.array([math.cos(angle), math.sin(angle)]),
                height,
                velocity=(12 * math.cos(angle), 12 * math.sin(angle), 4),
            )
            for _ in range(30):
                env.step(env.action_space.sample())
                left += outside(env, env.unwrapped.data.qpos[None, :2])
    assert left == 0


def test_no_ant_leaves_the_maze_in_20000_steps_of_coin_flips():
    env, visits = environment()
    *_, path = drive(env, 20_000)
    metres = path[:, :2] / ant.UNITS[0]
    assert len(path) >= 20_000 and outside(env, metres) == 0
    visits.add(path, 0)
    assert visits.free[visits.visited].all() and visits.metrics()["coverage"] > 0.5


def test_the_goal_counts_for_an_ant_on_the_ground_within_half_a_metre():
    env, _ = environment(action_repeat=1)
    env.reset(seed=0)
    goal = env.unwrapped.goal
    np.testing.assert_allclose(goal, [4, -4])
    for offset, height, reached in ((0.3, 0.75, True), (0.3, 2.5, False), (0.8, 0.75, False)):
        place(env, goal - (offset, 0), height)
        _, reward, terminated, truncated, _ = env.step(np.zeros(8, np.float32))
        assert terminated == reached and not truncated
        assert reward == pytest.approx(math.exp(-np.linalg.norm(env.unwrapped.data.qpos[:2] - goal)))


def test_random_torques_are_coin_flips_or_uniform():
    for kind in ("coin", "uniform"):
        env, _ = environment(random_torques=kind)
        args = ant.Args(random_torques=kind)
        torch.manual_seed(0)
        real = np.stack([env.action_space.sample() for _ in range(500)])
        for torques in (real, ant.random_like(torch.zeros(500, 8), args).numpy()):
            assert env.action_space.contains(torques[0]) and abs(torques.mean()) < 0.05
            assert np.abs(torques).mean() == pytest.approx(1.0 if kind == "coin" else 0.5, abs=0.03)


def test_start_and_goal_do_not_move_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env, visits = environment("large-open")
    assert not list(tmp_path.iterdir())
    for seed in range(3):
        state, _ = env.reset(seed=seed)
        assert state.dtype == np.float32 and env.observation_space.contains(state)
        np.testing.assert_allclose(state[:2], [-4, 4], atol=1e-6)  # a cell of 4 m is 2 units wide
        np.testing.assert_allclose(env.unwrapped.goal, [8, -8])
    assert visits.free.sum() == 400  # squares of 1 m


# ---------------------------------------------------------------------------------------------------------- the frame


def test_what_the_ant_sees_of_its_body_does_not_depend_on_where_it_faces():
    env, _ = environment()
    env.reset(seed=0)
    rng, base = np.random.default_rng(0), env.unwrapped.ant_env
    for _ in range(20):
        quaternion, angle = rng.normal(size=4), rng.uniform(0, 2 * math.pi)
        quaternion /= np.linalg.norm(quaternion)
        joints, speeds, turned = rng.normal(size=8), rng.normal(size=14), np.empty(4)
        mujoco.mju_mulQuat(turned, np.array(about((0, 0, 1), angle)), quaternion)
        cos, sin = math.cos(angle), math.sin(angle)
        rotated = speeds.copy()  # linear velocities are in the world's frame, angular ones in the body's
        rotated[:2] = np.array([[cos, -sin], [sin, cos]]) @ speeds[:2]
        base.set_state(np.array([1, 2, 0.7, *quaternion, *joints]), speeds)
        one = ant.observe(base.data)
        base.set_state(np.array([-1, 0, 0.7, *turned, *joints]), rotated)
        other = ant.observe(base.data)
        np.testing.assert_allclose(one[4:], other[4:], atol=1e-5)
        assert not np.allclose(one[:4], other[:4])


def test_upward_tells_an_ant_on_its_back():
    env, _ = environment()
    env.reset(seed=0)
    assert place(env)[ant.UPWARD].tolist() == pytest.approx([0, 0, 2])
    assert place(env, quaternion=about((1, 0, 0), math.pi))[ant.UPWARD].tolist() == pytest.approx([0, 0, -2], abs=1e-6)


def test_changes_lead_to_the_next_states_and_are_the_same_for_a_turned_ant():
    env, _ = environment()
    states, _, after, _ = (torch.as_tensor(part) for part in drive(env, 1500))
    changes = ant.change(states, after)
    torch.testing.assert_close(ant.valid(ant.changed(states, changes)), after, atol=1e-5, rtol=0)
    angle = torch.tensor([[math.cos(1.0), math.sin(1.0)]])
    for part in (states, after):
        for variables in (slice(2), ant.HEADING):
            part[:, variables] = ant.turn(part[:, variables], angle.expand(len(part), 2))
    torch.testing.assert_close(ant.change(states, after), changes, atol=1e-5, rtol=0)


def test_imagined_directions_keep_their_length():
    torch.manual_seed(0)
    states = ant.valid(torch.randn(100, 30))
    for part in (ant.HEADING, ant.UPWARD):
        torch.testing.assert_close(states[:, part].norm(dim=-1), torch.full((100,), float(ant.UNITS[part][0])))


# -------------------------------------------------------------------------------------------------------------- model


def test_eig_counts_the_displacement_alone():
    torch.manual_seed(0)
    ensemble = ant.PriorEnsemble(38, 32, ant.Args())
    mean, var = torch.zeros(3, 50, 32), torch.full((3, 50, 32), 1e-4)
    body = mean.clone()
    body[..., 2:] = torch.randn(3, 50, 30)
    moved = mean.clone()
    moved[..., :2] = 20 * torch.randn(3, 50, 2)
    assert ensemble.eig(body, var).abs().max() < 1e-6 < 0.3 < ensemble.eig(moved, var).min()
    assert (ensemble.draws[..., :2] != 0).all() and (ensemble.draws[..., 2:] == 0).all()


def test_the_reward_of_a_place_is_learned_though_networks_do_not_see_it():
    torch.manual_seed(0)
    x = torch.randn(1200, 38)
    x[:, :2] *= 2
    y = torch.cat([0.1 * torch.randn(1200, 30), (-x[:, :2].norm(dim=-1, keepdim=True)).exp(), torch.zeros(1200, 1)], -1)
    ensemble = ant.PriorEnsemble(38, 32, ant.Args())
    ensemble.fit(x[:1000], y[:1000], 200)
    predicted, true = ensemble.predict(x[1000:])[0].mean(0)[:, -2], y[1000:, -2]
    assert (predicted - true).square().mean() < 0.2 * true.var()


# ----------------------------------------------------------------------------------------------- imagination and values


def test_no_place_is_imagined_beyond_the_range_of_those_visited():
    torch.manual_seed(0)
    args = ant.Args()
    policy, ensemble = ant.SAC(30, 8, args), ant.PriorEnsemble(38, 32, args)
    x, y = torch.randn(300, 38), 3 * torch.randn(300, 32)
    x[:, :2] = torch.tensor([2.0, 1.0]) * torch.rand(300, 2)
    ensemble.fit(x, y, 10)
    states = ant.imagine(policy, ensemble, x[:50, :30], 6, 1.0, args)[0]
    low, high = x[:, :2].amin(0), x[:, :2].amax(0)
    assert (states[:, :2] >= low).all() and (states[:, :2] <= high).all()
    assert torch.equal(states[:, :2].amax(0), high)  # some would have left it


@pytest.mark.parametrize(("method", "expectile"), [("pts-be", 0.9), ("sac", 0.5)])
def test_critics_of_planners_learn_an_optimistic_expectile_of_returns(method, expectile):
    torch.manual_seed(0)
    policy = ant.SAC(30, 8, ant.Args(method=method))
    state, action = torch.zeros(256, 30), torch.zeros(256, 8)
    for _ in range(300):
        policy.update(state, action, torch.randint(2, (256,)).float())  # 0 and 1 as often: the expectile is itself
    value = policy.quality(policy.critics, policy.encode(state[:1]), action[:1])
    assert value.mean().item() == pytest.approx(expectile, abs=0.06)


# --------------------------------------------------------------------------------------------------------- benchmark


def test_a_perfect_model_has_an_r_squared_of_1_over_any_number_of_holds():
    torch.manual_seed(0)
    matrix = 0.1 * torch.randn(8, 32)

    class Perfect:
        seen = torch.tensor([[-99.0] * 32, [99.0] * 32])
        scale = 1.0

        def predict(self, x):
            return self.scale * (x[:, 30:] @ matrix)[None], torch.ones(1, len(x), 32)

    model, states, actions = Perfect(), [ant.valid(torch.randn(1, 30))], torch.randn(40, 8)
    for action in actions:
        states.append(ant.valid(ant.changed(states[-1], (action @ matrix)[None, :30])))
    episode = [torch.cat(states[:-1]), actions, torch.cat(states[1:])]
    assert all(value == pytest.approx(1, abs=1e-3) for value in ant_model.open_loop(model, [episode]).values())
    model.scale = 0.5
    assert all(value < 0.9 for value in ant_model.open_loop(model, [episode]).values())


def test_ideal_values_fall_with_the_way_to_what_is_unknown():
    eig = torch.zeros(ant_values.CELLS, ant_values.CELLS)
    eig[30, 30] = 0.5
    values = ant_values.ideal_values(eig, ant.Args())
    assert values[30, 30] == values.max() and (values[30, 1:30] > values[30, :29]).all() and (values >= 0).all()
    states = torch.cat([ant_values.places(), torch.zeros(ant_values.CELLS**2, 28)], -1)
    assert torch.allclose(ant_values.at(values, states), values.flatten(), atol=1e-4)


def test_gain_is_1_for_ideal_values_and_none_for_those_that_tell_nothing():
    ideal = torch.randn(2000, 50)
    assert ant_values.gain(ideal, ideal) == pytest.approx(1)
    assert abs(ant_values.gain(torch.randn(2000, 50), ideal)) < 0.05
    assert ant_values.gain(-ideal, ideal) == pytest.approx(-1, abs=0.05)


def test_coverage_at_a_step_and_the_ratio_of_paired_means():
    rows = [{"tag": "charts/coverage", "seed": "1", "steps": "100 200 300", "values": "0.1 0.2 0.4"}]
    assert plot.value_at(rows, "charts/coverage", 250) == {"1": 0.2}
    assert plot.value_at(rows, "charts/coverage", 900) == {"1": 0.4}
    ours, theirs = {"1": 0.6, "2": 0.6, "3": 0.9}, {"1": 0.3, "2": 0.3}
    assert plot.ratio_of_means(ours, theirs) == "2.00 [2.00, 2.00]"
