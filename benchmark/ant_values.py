"""Do the values that end the ant's look-ahead lead to what is unknown?

    python benchmark/ant_values.py

The model is fitted to coin flips on the large floor. From its EIG over the floor follow ideal values of places, those
of an agent that walks at SPEED in any direction and knows the walls. SAC then learns values as in a run, from scratch,
and chooses among imagined candidates as the look-ahead does. *Gain* is how much better, by the ideal values, its choice
is than the mean candidate, as a share of what the best candidate gains: 0 is chance, 1 is ideal.

Rows go to `benchmark/results/ant_values.csv`, the maps of the first seed to `benchmark/figures/ant_values.png`.
"""

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import matplotlib
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmark")]
import ant_model

import ptsbe_sac_antmaze as ant

SPEED = 0.67  # m/s, what runs do over five seconds
SIDE, WIDTH = 20.0, 0.5  # of the floor and of a cell of the maps, in m
CELLS = round(SIDE / WIDTH)
VARIANTS = {  # flags and constants that are changed
    "as it is": ({}, {}),
    "critics learn the mean return": ({}, {"CRITICS": {"pts-be": (2, 0.5)}}),
    "places beyond those visited": ({}, {"BOUNDED": 0}),
    "critics see the body": ({}, {"CRITICS": {"pts-be": (30, 0.9)}}),
    "no random imagined actions": ({"random_actions": 0.0}, {}),
    "4 imagined actions": ({"horizon": 4}, {}),
}


@dataclass
class Args:
    seeds: tuple[int, ...] = (1001, 1002, 1003)  # of data and networks
    steps: int = 6000  # of coin flips
    plannings: int = 150  # from scratch
    starts: int = 200  # visited states from which candidates are compared
    results: Path = ROOT / "benchmark" / "results"  # folder of the CSV file
    figures: Path = ROOT / "benchmark" / "figures"  # folder of the picture


def places() -> Tensor:
    """Middles of the cells as the agent sees them, row by row from above: (CELLS^2, 2)."""
    middle = (torch.arange(CELLS) + 0.5) * WIDTH - SIDE / 2
    y, x = torch.meshgrid(-middle, middle, indexing="ij")
    return torch.stack([x, y], -1).view(-1, 2) * ant.UNITS[0]


def over_floor(function, states: Tensor, draws: int = 8) -> Tensor:
    """Mean of function(states) in every cell, with bodies as they were seen: (CELLS, CELLS)."""
    total = torch.zeros(CELLS**2)
    for _ in range(draws):
        bodies = states[torch.randint(len(states), (CELLS**2,))]
        total += function(torch.cat([places(), bodies[:, 2:]], -1))
    return (total / draws).view(CELLS, CELLS)


def ideal_values(eig: Tensor, args: ant.Args) -> Tensor:
    """Value iteration over places, to the eight neighbours or for a hold where it is, bonus alone: (CELLS, CELLS)."""
    holds = WIDTH / (SPEED * ant_model.STEP * args.action_repeat)  # to the next cell
    discount, values = args.gamma * (-eig).exp(), torch.zeros_like(eig)
    moves = [(i, j, max(holds * math.hypot(i, j), 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    for _ in range(1000):
        around, before = F.pad(values, (1, 1, 1, 1), value=-math.inf), values
        options = []
        for i, j, wait in moves:
            left = discount**wait
            reached = around[1 + i : 1 + i + CELLS, 1 + j : 1 + j + CELLS]
            options.append(args.eta * eig * (1 - left) / (1 - discount) + left * reached)
        values = torch.stack(options).amax(0)
        if (values - before).abs().max() < 1e-4:
            break
    return values


def at(values: Tensor, states: Tensor) -> Tensor:
    """Values of places, interpolated, for states (N, S): (N,)."""
    place = states[:, :2] / ant.UNITS[0] / (SIDE / 2) * torch.tensor([1.0, -1.0])  # in [-1, 1], rows from above
    return F.grid_sample(values[None, None], place[None, :, None], align_corners=False, padding_mode="border")[
        0, 0, :, 0
    ]


@torch.no_grad()
def candidates(dynamics: ant.PriorEnsemble, start: Tensor, args: ant.Args) -> tuple[Tensor, Tensor, Tensor]:
    """Random candidates of the look-ahead from states (N, S): bonus on the way, discount at the end, and the ends."""
    state = start.repeat_interleave(args.rollouts, 0)
    bonus, discount = torch.zeros(len(state)), torch.ones(len(state))
    for _ in range(args.lookahead):
        action = ant.random_like(torch.zeros(len(state), 8), args)
        mean, var = dynamics.predict(torch.cat([state, action], -1))
        eig = dynamics.eig(mean, var)
        bonus, discount = bonus + args.eta * discount * eig, discount * args.gamma * (-eig).exp()
        y = mean.mean(0).clamp(*dynamics.seen[:, -mean.shape[-1] :])
        state = ant.valid(ant.changed(state, y[:, :-2]))
    return bonus, discount, state


def gain(learned: Tensor, ideal: Tensor) -> float:
    """Of the candidate that is best by learned returns (N, K), in ideal ones, over the mean, as share of the best's."""
    chosen = ideal.gather(1, learned.argmax(1, keepdim=True))[:, 0]
    mean = ideal.mean(1)
    return ((chosen - mean).mean() / (ideal.amax(1) - mean).mean()).item()


def learn(dynamics: ant.PriorEnsemble, x: Tensor, y: Tensor, args: ant.Args, plannings: int) -> ant.SAC:
    """SAC as a run would train it, on a model and data that stay."""
    size = y.shape[1] - 2
    policy = ant.SAC(size, x.shape[1] - size, args)
    for _ in range(plannings):
        start = x[torch.randint(len(x), (args.rollouts,)), :size]
        imagined = ant.imagine(policy, dynamics, start, args.horizon, args.eta, args)
        for _ in range(args.policy_updates):
            policy.update(*ant.draw(policy, x, y, y[:, -2], imagined, args))
    return policy


def draw(maps: dict[str, Tensor], path: Path) -> None:
    figure, axes = plt.subplots(1, len(maps), figsize=(3.4 * len(maps), 3.4), layout="constrained")
    for axis, (title, values) in zip(axes, maps.items(), strict=True):
        image = axis.imshow(values, extent=(0, SIDE, 0, SIDE), cmap="magma")
        axis.set(title=title, xlabel="m")
        figure.colorbar(image, ax=axis, shrink=0.8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main(args: Args) -> None:
    for seed in args.seeds:
        settings = ant.Args(maze="large-open", seed=seed)
        data = ant_model.episodes(settings, math.ceil(args.steps / settings.reset_interval))
        states, actions, after = (torch.cat(column)[: args.steps // 3] for column in zip(*data, strict=True))
        x, y = torch.cat([states, actions], -1), torch.cat([ant.change(states, after), torch.zeros(len(states), 2)], -1)
        torch.manual_seed(seed)
        dynamics = ant.PriorEnsemble(x.shape[1], y.shape[1], settings)
        dynamics.fit(x, y, 10 * settings.model_updates)
        eig = over_floor(lambda x: dynamics.eig(*dynamics.predict(x)), x)  # noqa: B023
        ideal = ideal_values(eig, settings)
        bonus, discount, ends = candidates(dynamics, states[torch.randint(len(states), (args.starts,))], settings)
        right = (bonus + discount * at(ideal, ends)).view(args.starts, -1)
        for name, (flags, constants) in VARIANTS.items():
            torch.manual_seed(seed)
            with mock.patch.dict(vars(ant), constants):
                policy = learn(dynamics, x, y, replace(settings, **flags), args.plannings)
                found = gain((bonus + discount * policy.value(ends)).view(args.starts, -1), right)
                learned = over_floor(policy.value, states)
            ant_model.add_row(args.results / "ant_values.csv", {"variant": name, "seed": seed, "gain": round(found, 3)})
            if seed == args.seeds[0] and name == "as it is":
                maps = {"EIG, nats": eig, "ideal value": ideal, "learned value": learned}
                draw(maps, args.figures / "ant_values.png")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(tyro.cli(Args, description=__doc__))
