"""What the ant's dynamics model knows, and how fast an ant goes where it is told to with it.

    python benchmark/ant_model.py model          # held-out R^2 against steps, for variants of the model
    python benchmark/ant_model.py direction      # speed in a commanded direction, with the model learned on the way

Neither is part of the agent: they tell model and planning apart from exploration. Results go to
`benchmark/results/ant_model.csv` and `ant_direction.csv`, a row at a time.
"""

import csv
import math
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from unittest import mock

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import ptsbe_sac_antmaze as ant

STEP = 0.05  # seconds of a step of the simulator


@dataclass
class Args:
    study: Annotated[Literal["model", "direction"], tyro.conf.Positional]
    """what to measure"""
    seeds: tuple[int, ...] = (1001, 1002)
    """of data, networks and directions"""
    steps: tuple[int, ...] = (2000, 5000, 10_000, 20_000)
    """of the simulator, at which the model is measured"""
    test_episodes: int = 15
    """held-out episodes of 1000 steps of coin flips"""
    results: Path = ROOT / "benchmark" / "results"
    """folder of the CSV files"""


def add_row(path: Path, row: dict) -> None:
    """A line at the end of a CSV file, and on the screen."""
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow(row)


# --------------------------------------------------------------------------------------------------------------- model


def to_world(states: Tensor) -> tuple[Tensor, Tensor]:
    """Positions (N, 2) in m and velocities (N, 3) in m/s, in the frame of the world."""
    raw = states / torch.as_tensor(ant.UNITS)
    return raw[:, :2], torch.cat([ant.turn(raw[:, ant.SPEED], raw[:, ant.HEADING]), raw[:, 10:11]], -1)


VARIANTS = {  # constants of the script and what they are changed to
    "as it is": {},
    "no dropout": {"MODEL_DROPOUT": 0.0},
    "batches of 256": {"MODEL_BATCH": 256},
    "networks see place and heading": {"MODEL_FEATURES": 64, "BODY": 0},
    "as in the point mazes": {
        "MODEL_FEATURES": 64,
        "BODY": 0,
        "MODEL_WIDTH": 64,
        "MODEL_LR": 4e-3,
        "MODEL_DROPOUT": 0.0,
    },
}


def episodes(args: ant.Args, count: int) -> list[list[Tensor]]:
    """For each of some episodes of random torques: states (n, S), actions (n, A), next states (n, S)."""
    env, _ = ant.make_env(args)
    found = []
    for episode in range(count):
        state, _ = env.reset(seed=args.seed + episode)
        rows, done = [], False
        while not done:
            action = env.action_space.sample()
            after, _, terminated, truncated, info = env.step(action)
            if len(info["path"]) == args.action_repeat:
                rows.append((state, action, after))
            state, done = after, terminated or truncated
        found.append([torch.as_tensor(np.stack(column)) for column in zip(*rows, strict=True)])
    return found


def r_squared(predicted: Tensor, true: Tensor) -> float:
    return round((1 - (predicted - true).square().sum() / (true - true.mean(0)).square().sum()).item(), 3)


def open_loop(dynamics: ant.PriorEnsemble, test: list[list[Tensor]]) -> dict[str, float]:
    """Held-out R^2 of velocity change and displacement over 1, 2 and 3 holds, by the mean of the members."""
    predicted, true = ([[] for _ in range(3)] for _ in range(2))
    for states, actions, after in test:
        rows = len(states) - 2
        state, (place, velocity) = states[:rows], to_world(states[:rows])
        for hold in range(3):
            mean = dynamics.predict(torch.cat([state, actions[hold : rows + hold]], -1))[0].mean(0)
            state = ant.valid(ant.changed(state, mean.clamp(*dynamics.seen[:, -mean.shape[1] :])[:, :-2]))
            for parts, reached in ((predicted, state), (true, after[hold : rows + hold])):
                now, speed = to_world(reached)
                parts[hold].append(torch.cat([now - place, speed - velocity], -1))
    found = {}
    for hold in range(3):
        guess, truth = torch.cat(predicted[hold]), torch.cat(true[hold])
        found[f"velocity_{hold + 1}"] = r_squared(guess[:, 2:], truth[:, 2:])
        found[f"position_{hold + 1}"] = r_squared(guess[:, :2], truth[:, :2])
    return found


def held_out_eig(dynamics: ant.PriorEnsemble, test: list[list[Tensor]]) -> float:
    """Mean EIG of held-out transitions, in nats: it falls as the model learns."""
    x = torch.cat([torch.cat([states, actions], -1) for states, actions, _ in test])
    return round(dynamics.eig(*dynamics.predict(x)).mean().item(), 4)


def study_model(args: Args) -> None:
    for seed in args.seeds:
        settings = ant.Args(maze="large-open", seed=seed)
        data = episodes(settings, math.ceil(max(args.steps) / settings.reset_interval))
        test = episodes(ant.Args(maze="large-open", seed=seed + 500), args.test_episodes)
        for name, changes in VARIANTS.items():
            with ExitStack() as patches:
                for constant, value in changes.items():
                    patches.enter_context(mock.patch.object(ant, constant, value))
                learn(args, settings, data, test, lambda row, n=name, s=seed: {"variant": n, "seed": s, **row})


def learn(args: Args, settings: ant.Args, data: list, test: list, label: Callable) -> None:
    """Fits as in a run, after the warm-up and then every model_interval steps."""
    states, actions, after = (torch.cat(column) for column in zip(*data, strict=True))
    x = torch.cat([states, actions], -1)
    y = torch.cat([ant.change(states, after), torch.zeros(len(x), 2)], -1)
    torch.manual_seed(settings.seed)
    dynamics, seconds, waiting = ant.PriorEnsemble(x.shape[1], y.shape[1], settings), 0.0, list(args.steps)
    for step in range(settings.warmup_steps, max(args.steps) + 1, settings.model_interval):
        rows, start = step // settings.action_repeat, time.process_time()
        updates = settings.model_updates * (10 if step == settings.warmup_steps else 1)
        dynamics.fit(x[:rows], y[:rows], updates)
        seconds += time.process_time() - start
        if step + settings.model_interval > waiting[0]:
            cost = {"steps": waiting.pop(0), "seconds_per_1000": round(1000 * seconds / step, 2)}
            eig = {"eig": held_out_eig(dynamics, test)}
            add_row(args.results / "ant_model.csv", label(cost | open_loop(dynamics, test) | eig))
        if not waiting:
            return


# ----------------------------------------------------------------------------------------------------------- direction


class Compass(nn.Module):
    """In the place of the agent's policy: random torques, and the way towards a direction as the value of a state."""

    def __init__(self, args: ant.Args):
        super().__init__()
        self.args, self.direction = args, torch.zeros(2)
        self.log_temperature = torch.tensor(-math.inf)

    def act(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return ant.random_like(torch.zeros(len(state), 8), self.args), torch.zeros(len(state))

    def value(self, state: Tensor) -> Tensor:
        return state[:, :2] @ self.direction


def study_direction(args: Args) -> None:
    """Speed by the agent's own look-ahead in a direction that is drawn every 300 steps, on a large empty floor."""
    for seed in args.seeds:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            rows = ["#" * 13, *["#" + "." * 11 + "#"] * 11, "#" * 13]
            rows[6], rows[1] = "#.....r.....#", "#g..........#"
            file.write("\n".join(rows))
            file.flush()
            settings = ant.Args(maze=file.name, seed=seed, total_timesteps=12_000, gamma=1.0)
            env, _ = ant.make_env(settings)
        moved, row = drive(env, settings), {"seed": seed}
        for low, high in ((2000, 6000), (6000, 12_000)):
            way = sum(metres for step, metres in moved if low < step <= high)
            row[f"speed_{low}_{high}"] = round(way / (STEP * (high - low)), 3)
        add_row(args.results / "ant_direction.csv", row)


def drive(env: gym.Env, settings: ant.Args) -> list[tuple[int, float]]:
    """After every hold the step and the metres gained in the commanded direction."""
    torch.manual_seed(settings.seed)
    size, total = env.observation_space.shape[0], settings.total_timesteps
    compass, dynamics = Compass(settings), ant.PriorEnsemble(size + 8, size + 2, settings)
    xs, ys, moved = torch.zeros(total, size + 8), torch.zeros(total, size + 2), []
    state, step, rows, fitted = env.reset(seed=settings.seed)[0], 0, 0, 0
    while step < total:
        here = torch.as_tensor(state)
        if step % 300 < settings.action_repeat:
            angle = 2 * math.pi * torch.rand(())
            compass.direction = torch.stack([angle.cos(), angle.sin()])
        action = torch.as_tensor(env.action_space.sample())
        if step >= settings.warmup_steps:
            start = here.expand(settings.rollouts, -1)
            _, actions, returns = ant.imagine(compass, dynamics, start, settings.lookahead, 0.0, settings, sample=False)
            action = actions[returns[: settings.rollouts].argmax()]
        state, _, terminated, truncated, info = env.step(action.numpy())
        after, held = torch.as_tensor(state), len(info["path"])
        xs[rows], ys[rows, :size] = torch.cat([here, action]), ant.change(here, after)
        rows, step = rows + 1, step + held
        moved.append((step, ((after - here)[:2] @ compass.direction / ant.UNITS[0]).item()))
        if terminated or truncated:
            state, _ = env.reset()
        if step >= settings.warmup_steps and (not fitted or step % settings.model_interval < held):
            dynamics.fit(xs[:rows], ys[:rows], settings.model_updates * (1 if fitted else 10))
            fitted = rows
    return moved


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = tyro.cli(Args, description=__doc__)
    {"model": study_model, "direction": study_direction}[arguments.study](arguments)
