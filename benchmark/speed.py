"""Speed of this repository's parts against their peers, as ratios measured in one run; the cost of whole runs.

    python benchmark/speed.py        # the tables of benchmark/speed.md, as results/speed.csv and speed_runs.csv

The two sides of a row take turns, round after round, so that a busy machine slows both; the ratio is the median over
the rounds of theirs / ours, with its quartiles. Runs are measured in CPU-seconds, with the share of each part.
"""

import contextlib
import csv
import dataclasses
import functools
import io
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import gpytorch
import gymnasium as gym
import numpy as np
import stable_baselines3
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import ptsbe_ppo_mountaincar
import ptsbe_ppo_unichain
import ptsbe_sac_maze
from gp_models import SVGP

INPUTS, OUTPUTS, INDUCING, BATCH, ROWS = 6, 5, 64, 256, 16


class GPyTorchSVGP(gpytorch.models.ApproximateGP):
    """The model that SVGP is: independent outputs, shared inducing points, ARD squared exponential, whitened q(u)."""

    def __init__(self, inducing: torch.Tensor):
        q = gpytorch.variational.CholeskyVariationalDistribution(len(inducing), batch_shape=torch.Size([OUTPUTS]))
        strategy = gpytorch.variational.VariationalStrategy(self, inducing, q, learn_inducing_locations=True)
        super().__init__(
            gpytorch.variational.IndependentMultitaskVariationalStrategy(strategy, num_tasks=OUTPUTS, task_dim=-1)
        )
        batch = torch.Size([OUTPUTS])
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(batch_shape=batch, ard_num_dims=INPUTS), batch_shape=batch
        )

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def compare(ours: Callable[[], None], theirs: Callable[[], None], rounds: int = 15, calls: int = 20) -> np.ndarray:
    """Seconds per call, (rounds, 2): ours, theirs."""
    seconds = np.empty((rounds, 2))
    for side in (ours, theirs):
        side()
    for round_ in range(rounds):
        for column, side in enumerate((ours, theirs)):
            start = time.perf_counter()
            for _ in range(calls):
                side()
            seconds[round_, column] = (time.perf_counter() - start) / calls
    return seconds


def svgp_rows() -> list[tuple[str, str, np.ndarray]]:
    x, y = torch.randn(BATCH, INPUTS), torch.randn(BATCH, OUTPUTS)
    ours = SVGP(INPUTS, OUTPUTS, INDUCING, learn_inducing=True)
    ours.initialize(x, y)
    our_optimizer = torch.optim.Adam(ours.parameters(), lr=1e-3)

    theirs = GPyTorchSVGP(ours.inducing.detach().clone())
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=OUTPUTS, has_global_noise=False)
    elbo = gpytorch.mlls.VariationalELBO(likelihood, theirs, num_data=1000)
    their_optimizer = torch.optim.Adam([*theirs.parameters(), *likelihood.parameters()], lr=1e-3)

    def our_step() -> None:
        our_optimizer.zero_grad()
        (-ours.elbo(x, y, num_data=1000)).backward()
        our_optimizer.step()

    def their_step() -> None:
        their_optimizer.zero_grad()
        (-elbo(theirs(x), y)).backward()
        their_optimizer.step()

    name = f"SVGP training step, {INDUCING} inducing points, batch {BATCH}, {OUTPUTS} outputs, {INPUTS} inputs"
    rows = [(name, "GPyTorch", compare(our_step, their_step))]

    ours.eval()
    theirs.eval()
    few = torch.randn(ROWS, INPUTS)

    def their_prediction() -> None:
        with torch.no_grad():
            posterior = theirs(few)
            posterior.mean, posterior.variance  # noqa: B018  evaluated for its cost

    rows.append(
        (f"SVGP cached prediction of {ROWS} rows", "GPyTorch", compare(lambda: ours.predict(few), their_prediction))
    )
    return rows


class NoMaze(gym.Env):
    """An environment with as many observations as our networks have inputs, which costs nothing: it fills a buffer."""

    def __init__(self, size: int):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: np.ndarray):
        return self.np_random.standard_normal(self.observation_space.shape, np.float32), 0.0, False, False, {}


def sac_rows() -> list[tuple[str, str, np.ndarray]]:
    """Gradient steps of critics, actor and temperature on mini-batches drawn from 2000 transitions, targets included.

    All layers of both have the same sizes. The inputs are Fourier features, which ours computes from the state and
    theirs is given.
    """
    rows = []
    for width, batch in ((64, 256), (256, 256)):
        args = ptsbe_sac_maze.Args(temperature=0.0)
        with mock.patch.object(ptsbe_sac_maze, "POLICY_WIDTH", width):
            ours = ptsbe_sac_maze.SAC(4, 2, args)
        size = {"policy_kwargs": {"net_arch": [width, width]}, "batch_size": batch, "buffer_size": 2000}
        untrained = {"learning_starts": 10**9, "train_freq": (2000, "step"), "device": "cpu"}
        theirs = stable_baselines3.SAC("MlpPolicy", NoMaze(ours.FEATURES + 4), **size, **untrained)
        theirs.learn(2000)  # fills the buffer, no gradient steps
        memory = theirs.replay_buffer
        columns = (memory.observations, memory.actions, memory.rewards, memory.next_observations, memory.dones)
        data = [torch.as_tensor(column).squeeze() for column in columns]  # one environment
        data[0], data[3] = data[0][:, :4].contiguous(), data[3][:, :4].contiguous()  # states and next states

        def our_steps(ours=ours, data=data, args=args, batch=batch) -> None:
            for index in torch.randint(2000, (20, batch)):
                states, actions, rewards, next_states, dones = (column[index] for column in data)
                ours.update(states, actions, rewards + args.gamma * (1 - dones) * ours.value(next_states))

        def their_steps(theirs=theirs, batch=batch) -> None:
            theirs.train(gradient_steps=20, batch_size=batch)

        seconds = compare(our_steps, their_steps, calls=1) / 20
        rows.append((f"SAC gradient step, 2 x {width}, batch {batch}", "Stable-Baselines3", seconds))
    return rows


@contextlib.contextmanager
def timed(parts: dict[str, tuple[Any, str]]):
    """CPU-seconds spent in functions or methods, `name -> (where it lives, its name there)`."""
    seconds, originals = Counter(), {}

    def wrap(name: str, function: Callable) -> Callable:
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                seconds[name] += time.process_time() - start

        return wrapper

    for name, (owner, attribute) in parts.items():
        originals[name] = getattr(owner, attribute)
        setattr(owner, attribute, wrap(name, originals[name]))
    try:
        yield seconds
    finally:
        for name, (owner, attribute) in parts.items():
            setattr(owner, attribute, originals[name])


def run_cost(script: ModuleType, args: Any, parts: dict[str, tuple[Any, str]]) -> tuple[list[float], Counter]:
    """CPU-seconds of a whole run, importing aside, three times, and of the parts of the middle one."""
    runs = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), timed(parts) as seconds:
            start = time.process_time()
            with contextlib.redirect_stdout(io.StringIO()):
                script.main(args)
            runs.append((time.process_time() - start, seconds))
    runs.sort(key=lambda run: run[0])
    return [total for total, _ in runs], runs[1][1]


def run_rows() -> list[tuple[str, list[float], Counter]]:
    rows = []
    for script, name, settings in (
        (ptsbe_ppo_mountaincar, "Mountain Car, 1000 steps", {}),
        (ptsbe_ppo_unichain, "Chain of 100 states, 400 steps", {"length": 100, "total_timesteps": 400}),
    ):
        for dynamics, model in (("de", script.PriorEnsemble), ("gp", script.SparseGP), ("dk", script.SparseGP)):
            parts = {
                "imagination": (script, "imagine"),
                "PPO": (script.PPO, "update"),
                "model": (model, "fit"),
                "bonus": (model, "eig"),
            }
            args = dataclasses.replace(script.parse(["--dynamics", dynamics]), seed=1001, **settings)
            rows.append((f"{name} of pts-be, eig, {dynamics}", *run_cost(script, args, parts)))
    return rows


def maze_rows() -> list[tuple[str, list[float], Counter]]:
    script, rows = ptsbe_sac_maze, []
    for method in ("sac", "be", "pts-be"):
        parts = {
            "imagination with its bonus": (script, "imagine"),
            "SAC": (script.SAC, "update"),
            "model": (script.PriorEnsemble, "fit"),
            "pictures": (script, "show"),
        }
        args = script.parse(["--seed", "1001", "--method", method, "--total-timesteps", "1000", "--no-stop-at-goal"])
        rows.append((f"U-shaped maze, 1000 steps of {method}", *run_cost(script, args, parts)))
    return rows


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parts = [["what", "peer", "ours, ms", "theirs, ms", "times faster [quartiles]"]]
    for name, peer, seconds in svgp_rows() + sac_rows():
        ours, theirs = 1e3 * np.median(seconds, axis=0)
        low, middle, high = np.quantile(seconds[:, 1] / seconds[:, 0], [0.25, 0.5, 0.75])
        parts.append([name, peer, f"{ours:.3f}", f"{theirs:.2f}", f"{middle:.1f} [{low:.1f}, {high:.1f}]"])
    runs = [["run", "CPU-seconds, middle [least, most] of three", "where they go"]]
    for name, (low, middle, high), shares in run_rows() + maze_rows():
        text = ", ".join(f"{part} {100 * seconds / middle:.0f} %" for part, seconds in shares.most_common())
        runs.append([name, f"{middle:.1f} [{low:.1f}, {high:.1f}]", text])
    for name, rows in (("speed", parts), ("speed_runs", runs)):
        with (ROOT / "benchmark" / "results" / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
