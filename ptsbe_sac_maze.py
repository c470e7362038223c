"""PTS-BE with SAC in point mazes: planning to explore with the expected information gain (EIG).

    python ptsbe_sac_maze.py --maze u-shape --seed 1

The file reads top to bottom: arguments, environment, dynamics models, bonuses, policy, imagination, pictures, main.
"""

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter, summary

from gp_models import SVGP, ResNetFeatures, Standardizer

RENDERER = os.environ.pop("MUJOCO_GL", None)  # MuJoCo cannot be imported under one that is missing; see check_renderer
with contextlib.redirect_stderr(io.StringIO()):  # it prints news of its robot hands
    import gymnasium_robotics


@dataclass
class Args:
    # the experiment
    method: Literal["random", "sac", "be", "pts", "pts-be"] = "pts-be"
    """sac, be: SAC on real data, without and with the bonus; pts, pts-be: SAC on imagined data, without and with it"""
    bonus: Literal["eig", "entropy", "variance", "error"] = "eig"
    """intrinsic reward r^i of be and pts-be; error needs the real next state, so pts-be refuses it"""
    dynamics: Literal["de", "gp", "dk"] = "de"
    """model of the dynamics p(f): deep ensemble, sparse variational GP, sparse variational deep kernel"""
    be_relabel: bool = True
    """be: score a transition with the current model whenever it is sampled, instead of once when it is collected"""
    maze: str = "u-shape"
    """open, u-shape, double-u-shape, obstacles, or a text file with rows of # wall, . free, r start, g goal"""
    total_timesteps: int = 5000
    """number of real steps T of the simulator"""
    stop_at_goal: bool = True
    """end the run when the goal is first reached; otherwise a new episode starts there"""
    reset_interval: int = 1000
    """steps after which an episode is truncated and the ball is put back to the start"""
    action_repeat: int = 10
    """steps for which every method holds an action: 0.1 s, in which a fast ball crosses half a cell"""
    jitter: float = 0.0
    """how far start and goal are moved at random at every reset, in cells"""
    # the run
    exp_name: str = Path(__file__).stem
    """name of the experiment in the name of the run"""
    run_name: str | None = None
    """directory under runs/, instead of {env}__{exp}__{seed}__{time}"""
    seed: int = 1
    """seed of the environment, the networks and all sampling"""
    cuda: bool = False
    """run the networks on the GPU; the CPU is faster at the default sizes"""
    track: bool = False
    """log to Weights and Biases as well"""
    capture_video: bool = False
    """record the last episode as a video in the directory of the run"""
    save_model: bool = False
    """save policy and dynamics model in the directory of the run"""
    # Algorithm 1
    warmup_steps: int = 100
    """steps with random actions before the first update, t_warm"""
    policy_interval: int = 20
    """steps between two updates of the policy, t_policy"""
    model_interval: int = 20
    """steps between two updates of the dynamics model, t_model"""
    rollouts: int = 30
    """imagined trajectories of a planning, K: a third each from the current state, from replayed states and from
    displaced replayed states"""
    horizon: int = 24
    """actions in an imagined trajectory, J"""
    start_noise: float = 0.3
    """how far replayed states are displaced, in m and m/s; further, and the critics learn what walls hide"""
    lookahead: int = 8
    """actions ahead over which the K trajectories from the present state are compared before every real action, the
    first one of the best is taken; 0 acts with the policy, as Algorithm 1 is printed"""
    random_actions: float = 0.25
    """share of imagined actions that are uniform: without them the critics see the policy's actions alone"""
    planning_window: int = 4
    """last plannings whose imagined transitions train the policy"""
    policy_updates: int = 24
    """gradient steps on the policy in an update, G"""
    model_updates: int = 40
    """gradient steps on the deep ensemble in an update, ten times as many in the first"""
    eta: float = 1.0
    """weight of the bonus, eta: a constant, so that the bonus fades as the model learns"""
    eta_decay: float = 1.0
    """eta_t = eta * eta_decay ** (t / 1000)"""
    # dynamics model
    ensemble_size: int = 5
    """number of networks in the deep ensemble, M"""
    model_width: int = 64
    """hidden units in each of the two layers of a member, and of the deep kernel"""
    model_features: int = 64
    """random Fourier features of the position in a member"""
    model_scale: float = 0.7
    """length-scale of these features in m: how sharply the dynamics may change from place to place"""
    prior_scale: float = 1.5
    """length-scale of a member's prior function in m: how far from visited places the members disagree"""
    prior_size: float = 3.0
    """standard deviation of a member's prior function, in units of the targets' own"""
    model_lr: float = 4e-3
    """learning rate of the ensemble"""
    model_batch: int = 64
    """transitions per gradient step and member"""
    input_noise: float = 0.03
    """noise on the positions from which the ensemble learns to predict, in m, five times as much on velocities in m/s:
    it learns to come back to states that occur, and imagined balls no longer creep into walls"""
    eig_noise: float = 3.5
    """noise that the EIG assumes at least, in units of the targets' deviation: small disagreements count little"""
    eig_threshold: float = 0.15
    """EIG up to which an outcome counts as known, in nats: many small gains must not outweigh a frontier"""
    inducing_points: int = 64
    """inducing points of the GP and of the deep kernel"""
    gp_eig_noise: float = 1.2
    """as eig_noise, for gp and dk, whose prior is as large as the targets and not prior_size times as large"""
    gp_lr: float = 0.05
    """learning rate of the hyper-parameters (gp, dk)"""
    gp_updates: int = 5
    """gradient steps on the hyper-parameters in an update, ten times as many in the first (gp, dk)"""
    # SAC
    policy_width: int = 64
    """hidden units in each of the two layers of actor and critics"""
    policy_features: int = 64
    """random Fourier features of the position in actor and critics"""
    policy_scale: float = 1.0
    """length-scale of these features in m"""
    policy_lr: float = 3e-3
    """learning rate of actor, critics and temperature"""
    policy_batch: int = 256
    """transitions per gradient step"""
    gamma: float = 0.97
    """discount factor of an action"""
    lam: float = 0.95
    """lambda of the returns of imagined trajectories"""
    tau: float = 0.02
    """how far the target critics follow in a gradient step"""
    temperature: float = 0.002
    """weight of the policy's entropy, alpha"""
    autotune: bool = False
    """adapt the temperature to a target entropy of minus the number of actions"""


# ----------------------------------------------------------------------------------------------------- environment

SPEED = 1 / 3  # what the networks see of a velocity in m/s; the ball moves at up to 5

MAZES = {  # `#` wall, `.` free, `r` start, `g` goal; a cell is 1 m wide
    "open": """
#######
#r....#
#.....#
#....g#
#######
""",
    "u-shape": """
#####
#r..#
###.#
#g..#
#####
""",
    "double-u-shape": """
#######
#r....#
#####.#
#.....#
#.#####
#....g#
#######
""",
    "obstacles": """
###########
#r........#
#..#...##.#
#..##.....#
#......#..#
#.##...##.#
#...#.....#
#..##...#.#
#........g#
###########
""",
}


class Maze:
    """Cells of a map, and where positions lie in it. The centre of the map is the origin, x to the right, y upwards."""

    PARTS = 4  # coverage counts squares of 1 / PARTS m
    CLEARANCE = 0.04  # a ball of radius 0.1 m that hits a wall at full speed has its centre 0.054 m off it

    def __init__(self, rows: list[str]):
        self.rows = rows
        self.walls = np.array([[character == "#" for character in row] for row in rows])  # (rows, columns)
        self.half_size = np.array(self.walls.shape[::-1]) / 2  # of the map, (x, y)
        start, goal = (next((i, row.index(c)) for i, row in enumerate(rows) if c in row) for c in "rg")
        self.start, self.goal = self.centre(np.array(start)), self.centre(np.array(goal))  # (2,) each
        self.reachable = np.zeros_like(self.walls)
        frontier = [start]
        while frontier:
            cell = frontier.pop()
            if not self.walls[cell] and not self.reachable[cell]:
                self.reachable[cell] = True
                i, j = cell
                frontier += [(i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)]
        self.visits = np.zeros(np.array(self.walls.shape) * self.PARTS, dtype=np.int64)

    def cell(self, xy: np.ndarray, parts: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Row and column of positions, the nearest one for positions outside of the map: (..., 2) -> 2 x (...)."""
        columns = np.floor((xy[..., 0] + self.half_size[0]) * parts).astype(int)
        rows = np.floor((self.half_size[1] - xy[..., 1]) * parts).astype(int)
        height, width = self.walls.shape
        return rows.clip(0, height * parts - 1), columns.clip(0, width * parts - 1)

    def centre(self, cell: np.ndarray, parts: int = 1) -> np.ndarray:
        """Position of the middle of cells (row, column): (..., 2) -> (..., 2)."""
        return ((cell[..., ::-1] + 0.5) / parts - self.half_size) * (1, -1)

    def free_positions(self) -> np.ndarray:
        """Middle of every reachable square: (squares, 2)."""
        return self.centre(np.argwhere(self.fine(self.reachable)), self.PARTS)

    def fine(self, cells: np.ndarray) -> np.ndarray:
        """From values of cells to values of squares: (rows, columns) -> (rows * PARTS, columns * PARTS)."""
        return cells.repeat(self.PARTS, 0).repeat(self.PARTS, 1)

    def visit(self, xy: np.ndarray) -> None:
        self.visits[self.cell(xy, self.PARTS)] += 1

    def coverage(self) -> float:
        """Share of the reachable squares that were visited."""
        return float((self.visits[self.fine(self.reachable)] > 0).mean())

    def distance(self, xy: np.ndarray) -> np.ndarray:
        """Straight line to the goal: (..., 2) -> (...)."""
        return np.linalg.norm(xy - self.goal, axis=-1)

    def inside_wall(self, xy: np.ndarray) -> np.ndarray:
        """Whether a ball there would stick in a wall: (..., 2) -> (...). For diagnosis alone, no agent may use it."""
        offsets = self.CLEARANCE * np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)])
        return self.walls[self.cell(xy[..., None, :] + offsets)].any(-1)


def parse_map(text: str) -> Maze:
    """The maze drawn by a text, or a ValueError that names the row and the reason."""
    rows = [row.rstrip() for row in text.rstrip().splitlines()]
    if not rows:
        raise ValueError("it is empty: draw rows of # wall, . free, r start, g goal")
    for i, row in enumerate(rows, 1):
        for j, character in enumerate(row, 1):
            if character not in "#.rg":
                raise ValueError(f"row {i}, column {j}: {character!r} is none of # wall, . free, r start, g goal")
        if len(row) != len(rows[0]):
            raise ValueError(f"row {i} has {len(row)} cells and row 1 has {len(rows[0])}: all rows must be as long")
        border = range(len(row)) if i in (1, len(rows)) else (0, len(row) - 1)
        for j in border:
            if row[j] != "#":
                raise ValueError(f"row {i}, column {j + 1}: {row[j]!r} at the border, which must be closed by walls, #")
    for character, name in (("r", "start"), ("g", "goal")):
        places = [(i, j) for i, row in enumerate(rows, 1) for j, c in enumerate(row, 1) if c == character]
        if not places:
            raise ValueError(f"none of the rows 1 to {len(rows)} has a {name}: mark one cell with {character}")
        if len(places) > 1:
            (i, j), (again_i, again_j) = places[:2]
            raise ValueError(f"row {again_i}, column {again_j}: a second {name} after that in row {i}, column {j}")
    maze = Maze(rows)
    row, column = maze.cell(maze.goal)
    if not maze.reachable[row, column]:
        raise ValueError(f"row {row + 1}, column {column + 1}: walls part the goal from the start")
    return maze


def read_maze(name: str) -> Maze:
    """One of MAZES or a text file; a bad one is refused."""
    if name not in MAZES and not Path(name).exists():
        refuse(f"--maze {name} is neither a file nor one of {', '.join(MAZES)}")
    try:
        return parse_map(MAZES[name].lstrip() if name in MAZES else Path(name).read_text(encoding="utf-8-sig"))
    except OSError as error:
        refuse(f"--maze {name} cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        refuse(f"--maze {name} is not a text file")
    except ValueError as error:
        refuse(f"--maze {name}, {error}")


def make_env(maze: Maze, reset_interval: int, jitter: float = 0.0, render_mode: str | None = None) -> gym.Env:
    """Gymnasium-Robotics' PointMaze with state (x, y, vx, vy) and reward 1 within 0.45 m of the goal, which terminates.

    After reset_interval steps an episode is truncated. Start and goal lie in the middle of their cells, moved by up
    to jitter meters in x and y at every reset.
    """
    cells = [[{"#": 1, ".": 0}.get(character, character) for character in row] for row in maze.rows]
    gym.register_envs(gymnasium_robotics)
    env = gym.make(
        "PointMaze_UMaze-v3",
        maze_map=cells,
        continuing_task=False,
        max_episode_steps=reset_interval,
        render_mode=render_mode,
        width=320,
        height=320,  # a video keeps its frames in memory until it is written
        disable_env_checker=True,
    )
    env.unwrapped.position_noise_range = jitter  # as a keyword it would also go to the ball, which refuses it
    Path(env.unwrapped.tmp_xml_file_path).unlink()  # the library leaves a file in the temporary folder otherwise
    space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    return gym.wrappers.TransformObservation(env, lambda seen: seen["observation"].astype(np.float32), space)


# -------------------------------------------------------------------------------------------------- dynamics models
# A dynamics model maps x = [state, action] to a distribution of y = [state change, reward]. All of them offer
# fit(x, y, steps), predict(x) -> (mean, var), advance(x) -> y, and the bonuses as functions of (mean, var).


class BatchedMLP(nn.Module):
    """Networks of the same size as one batch of matrices: a layer of all of them is one product.

    Weights and biases of layer l are drawn from U(-g, g), g = gains[l] / sqrt(inputs of the layer).
    """

    def __init__(self, networks: int, sizes: tuple[int, ...], gains: tuple[float, ...]):
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for (fan_in, fan_out), gain in zip(pairwise(sizes), gains, strict=True):
            bound = gain / math.sqrt(fan_in)
            self.weights.append(nn.init.uniform_(torch.empty(networks, fan_in, fan_out), -bound, bound))
            self.biases.append(nn.init.uniform_(torch.empty(networks, 1, fan_out), -bound, bound))
        self.layers = tuple(zip(self.weights, self.biases, strict=True))  # a ParameterList is slow to walk

    def forward(self, x: Tensor) -> Tensor:
        """(M, N, in) -> (M, N, out)."""
        for weight, bias in self.layers[:-1]:
            x = F.silu(torch.baddbmm(bias, x, weight))  # (M, N, width)
        weight, bias = self.layers[-1]
        return torch.baddbmm(bias, x, weight)


class FourierFeatures(nn.Module):
    """Random Fourier features of the position (Rahimi and Recht, 2007), sqrt(2) cos(w x + b), other ones per network.

    A weighted sum of them is a draw from a Gaussian process of that length-scale; a network on top of them can bend
    at a wall, and what it learns in one place does not reach far beyond the length-scale.
    """

    def __init__(self, networks: int, features: int, length_scale: float):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(networks, 2, features) / length_scale)
        self.register_buffer("phases", 2 * math.pi * torch.rand(networks, 1, features))

    def forward(self, position: Tensor) -> Tensor:
        """(M, N, 2) -> (M, N, features)."""
        return math.sqrt(2) * torch.baddbmm(self.phases, position, self.frequencies).cos()


class Adam:
    """Adam (Kingma and Ba, 2015), torch's fused kernel and nothing else.

    torch.optim.Adam takes 0.1 ms more a step, and 1.5 s for the first one, in which it imports torch's compiler.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float):
        self.lr = lr
        self.constants = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
        self.state = [(p, torch.zeros_like(p), torch.zeros_like(p), p.new_zeros(())) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Move along the gradients, and forget them; parameters without one stay as they are."""
        used = [state for state in self.state if state[0].grad is not None]
        parameters, means, squares, steps = map(list, zip(*used, strict=True))
        gradients = [p.grad for p in parameters]
        torch._foreach_add_(steps, 1)
        state = parameters, gradients, means, squares, [], steps
        torch._fused_adam_(*state, lr=self.lr, **self.constants, amsgrad=False, maximize=False)
        for p in parameters:
            p.grad = None


class PriorEnsemble(nn.Module):
    """M probabilistic networks (Lakshminarayanan et al., 2017), each around its own random prior (Osband et al., 2018).

    The mean of a member is linear in velocity and action, plus a network on [state, action, Fourier features], plus a
    fixed smooth random function of the position. Members agree where data made their networks cancel the prior, at
    any speed, and disagree elsewhere. The reward has no prior: nothing is gained by imagining rewards.
    """

    MIN_LOG_VAR, MAX_LOG_VAR = -6.0, 2.0  # of the standardised targets

    def __init__(self, in_dim: int, out_dim: int, args: Args):
        super().__init__()
        self.members, self.lr, self.batch_size = args.ensemble_size, args.model_lr, args.model_batch
        self.min_eig_var, self.threshold = args.eig_noise**2, args.eig_threshold
        features, width, noise = args.model_features, args.model_width, args.input_noise
        self.register_buffer("noise", torch.tensor([noise, noise, 5 * noise, 5 * noise]))
        self.features = FourierFeatures(self.members, features, args.model_scale)
        self.networks = BatchedMLP(self.members, (in_dim + features, width, width, 2 * out_dim), (1.0, 1.0, 1.0))
        self.linear = BatchedMLP(self.members, (in_dim - 2, out_dim), (0.0,))
        self.prior_features = FourierFeatures(self.members, features, args.prior_scale)
        prior = args.prior_size / math.sqrt(features) * torch.randn(self.members, features, out_dim)
        prior[..., -1] = 0
        self.register_buffer("prior", prior)
        self.out_scale = Standardizer(out_dim)
        self.optimizer = Adam(list(self.parameters()), self.lr)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the standardised targets: (M, N, in) -> 2 x (M, N, D)."""
        return self.learned(*self.fixed(x))

    @torch.no_grad()
    def fixed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The parts that are not learned, inputs of the networks and prior: (M, N, in) -> (M, N, code), (M, N, D)."""
        position, rest = x[..., :2], x[..., 2:] * x.new_tensor([SPEED, SPEED, 1.0, 1.0])
        return torch.cat([position, self.features(position), rest], -1), self.prior_features(position) @ self.prior

    def learned(self, code: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance, from the parts that are fixed: (M, N, code), (M, N, D) -> 2 x (M, N, D)."""
        mean, raw = self.networks(code).chunk(2, -1)
        mean = mean + self.linear(code[..., -4:]) + prior
        return mean, self.MIN_LOG_VAR + (self.MAX_LOG_VAR - self.MIN_LOG_VAR) * raw.sigmoid()

    def fit(self, x: Tensor, y: Tensor, steps: int) -> float:
        """Gradient steps on the beta-NLL (Seitzer et al., 2022) with beta = 1; every member draws its own mini-batches.

        The plain likelihood explains rare contacts with walls as noise; multiplied by the variance it does not. The
        learning rate falls to 0 within every call: at a constant rate the members jitter and EIG cannot fade.
        From a state with noise on it, the true next state is to be predicted, so that errors do not add up along a
        trajectory (Sanchez-Gonzalez et al., 2020): a ball at rest at a wall would creep into it in imagination.
        """
        self.out_scale.fit(y)
        index = torch.randint(len(x), (self.members, steps * self.batch_size), device=x.device)
        x, y = x[index], y[index]  # (M, steps * B, ...)
        noise = self.noise * torch.randn_like(x[..., :4])
        x[..., :4] += noise
        y[..., :4] -= noise
        batches = [part.split(self.batch_size, 1) for part in (*self.fixed(x), self.out_scale(y))]
        for step, (code, prior, target) in enumerate(zip(*batches, strict=True)):
            self.optimizer.lr = self.lr * (1 - step / steps)
            mean, log_var = self.learned(code, prior)  # (M, B, D) each
            error = (target - mean).square()
            # the gradient of var * (log var + error / var), with the first var held fixed
            loss = (error + log_var * (log_var.exp() - error).detach()).mean(1).sum()
            loss.backward()
            self.optimizer.step()
        return error.mean().item()

    @torch.no_grad()
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and noise variance of every member, in the units of the targets: (N, in) -> 2 x (M, N, D)."""
        mean, log_var = self(x.expand(self.members, -1, -1))
        return self.out_scale.mean + self.out_scale.scale * mean, self.out_scale.scale.square() * log_var.exp()

    @torch.no_grad()
    def advance(self, x: Tensor) -> Tensor:
        """One draw of every outcome, row k always from the same member: (N, in) -> (N, D).

        A trajectory then lives in one possible world: a wall that one of five members doubts is passed by a fifth of
        the trajectories, and not by all of them sooner or later.
        """
        share = -(-len(x) // self.members)
        rows = torch.arange(self.members * share, device=x.device) % len(x)
        mean, log_var = self(x[rows].view(self.members, share, -1))
        y = mean + (0.5 * log_var).exp() * torch.randn_like(mean)  # (M, share, D)
        return (self.out_scale.mean + self.out_scale.scale * y).flatten(0, 1)[: len(x)]

    def eig(self, mean: Tensor, var: Tensor) -> Tensor:
        var = var.maximum(self.min_eig_var * self.out_scale.scale.square())
        return (mixture_eig(mean, var) - self.threshold).clamp_min(0)

    def entropy(self, mean: Tensor, var: Tensor) -> Tensor:
        """H[mixture] = EIG + mean entropy of the members: (N,)."""
        return mixture_eig(mean, var) + gaussian_entropy(var).mean(0)

    def variance(self, mean: Tensor, var: Tensor) -> Tensor:
        """Predictive variance, in units of the targets' own, summed over outputs: (N,)."""
        return ((var.mean(0) + mean.var(0, correction=0)) / self.out_scale.scale.square()).sum(-1)

    def error(self, mean: Tensor, var: Tensor, y: Tensor) -> Tensor:
        """Distance of the outcome from the mean, in units of the targets' deviation: (N,)."""
        return ((mean.mean(0) - y) / self.out_scale.scale).norm(dim=-1)


class SparseGP(SVGP):
    """Sparse variational GP (Titsias, 2009), on the inputs or, as a deep kernel, on learned features of them.

    It computes in float64: its matrices are small, and ill-conditioned where transitions are alike.
    """

    def __init__(self, in_dim: int, out_dim: int, num_inducing: int, lr: float, features: nn.Module | None = None):
        super().__init__(in_dim, out_dim, num_inducing, features=features)
        self.double()
        self.lr = lr

    def fit(self, x: Tensor, y: Tensor, steps: int) -> float:
        super().fit(x, y, steps, self.lr)
        with torch.no_grad():
            return -float(self.collapsed_bound(x, y)) / len(x)

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the latent function: (N, in) -> 2 x (N, D)."""
        mean, var = super().predict(x)
        return mean.to(x.dtype), var.to(x.dtype)

    def sample(self, mean: Tensor, var: Tensor) -> Tensor:
        """One draw of the outcome: 2 x (N, D) -> (N, D)."""
        return mean + self.total(var).sqrt() * torch.randn_like(mean)

    def total(self, var: Tensor) -> Tensor:
        """Variance of an outcome: of the function and of the noise."""
        return var + self.noise.detach().to(var.dtype)

    def eig(self, mean: Tensor, var: Tensor) -> Tensor:
        return gaussian_eig(var, self.noise.detach().to(var.dtype))

    def entropy(self, mean: Tensor, var: Tensor) -> Tensor:
        return gaussian_entropy(self.total(var))

    def variance(self, mean: Tensor, var: Tensor) -> Tensor:
        """Predictive variance, in units of the targets' own, summed over outputs: (N,)."""
        return (self.total(var) / self.out_scale.scale.square().to(var.dtype)).sum(-1)

    def error(self, mean: Tensor, var: Tensor, y: Tensor) -> Tensor:
        """Distance of the outcome from the mean, in units of the targets' deviation: (N,)."""
        return ((mean - y) / self.out_scale.scale.to(mean.dtype)).norm(dim=-1)


class MazeGP(SparseGP):
    """The sparse GP with the floor and the threshold of the EIG that the ensemble has."""

    def __init__(self, in_dim: int, out_dim: int, args: Args, features: nn.Module | None = None):
        super().__init__(in_dim, out_dim, args.inducing_points, args.gp_lr, features)
        self.min_eig_var, self.threshold = args.gp_eig_noise**2, args.eig_threshold

    def advance(self, x: Tensor) -> Tensor:
        return self.sample(*self.predict(x))

    def eig(self, mean: Tensor, var: Tensor) -> Tensor:
        noise = self.noise.detach().maximum(self.min_eig_var * self.out_scale.scale.square()).to(var.dtype)
        return (gaussian_eig(var, noise) - self.threshold).clamp_min(0)


# ---------------------------------------------------------------------------------------------------------- bonuses


def gaussian_entropy(var: Tensor) -> Tensor:
    """Entropy of diagonal Gaussians, in nats: (..., D) -> (...)."""
    return 0.5 * (2 * math.pi * math.e * var).log().sum(-1)


def gaussian_eig(var: Tensor, noise: Tensor) -> Tensor:
    """EIG of a Gaussian posterior (Appendix B.2), 0.5 * sum_d log(1 + var_d / noise_d): (N, D), (D,) -> (N,)."""
    return 0.5 * torch.log1p(var / noise).sum(-1)


def mixture_eig(mean: Tensor, var: Tensor) -> Tensor:
    """EIG of an ensemble, the Jensen-Shannon divergence of its members (Appendix B.3): 2 x (M, N, D) -> (N,).

    -mean_i log mean_j c_ij^2 with c_ij the Bhattacharyya coefficient of two members: exact to second order for close
    members, log M for distant ones, no sampling noise. benchmark/README.md compares it with other estimators.
    """
    half_log_var, middle = 0.5 * var.log(), 0.5 * (var[:, None] + var)  # (M, N, D), (M, M, N, D)
    distance = 0.25 * (mean[:, None] - mean).square() / middle
    log_overlap = (half_log_var[:, None] + half_log_var - middle.log() - distance).sum(-1)  # log c_ij^2, (M, M, N)
    return -log_overlap.exp().mean(1).log().mean(0)


# ------------------------------------------------------------------------------------------------------- SAC policy


class TwinCritics(nn.Module):
    """Two networks from state and action to a value, as one batch."""

    def __init__(self, in_dim: int, width: int):
        super().__init__()
        self.networks = BatchedMLP(2, (in_dim, width, width), (1.0, 1.0))
        bound = 1 / math.sqrt(width)
        self.head = nn.Parameter(nn.init.uniform_(torch.empty(2, 1, width), -bound, bound))
        self.bias = nn.Parameter(torch.zeros(2, 1))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """(N, S), (N, A) -> (2, N)."""
        x = torch.cat([state, action], -1)  # (N, S + A)
        x = F.silu(self.networks(x.expand(2, -1, -1)))  # (2, N, width)
        return (x * self.head).sum(-1) + self.bias  # a matrix product with one column takes four times as long


class SAC(nn.Module):
    """Tanh-Gaussian actor, twin critics and temperature, and the update of Haarnoja et al. (2018).

    All networks see Fourier features of the position and the velocity. Densities are relative to the uniform policy:
    its entropy is 0 and that of all others negative, so that nothing is earned by going on where nothing is learnt.
    """

    MAX_MEAN, MIN_LOG_STD, MAX_LOG_STD = 2.0, -3.0, 0.5  # before the tanh: a saturated actor would not learn

    def __init__(self, action_dim: int, args: Args):
        super().__init__()
        self.tau, self.autotune = args.tau, args.autotune
        self.target_entropy = -action_dim * (1 + math.log(2))  # -action_dim, relative to the uniform policy
        self.features = FourierFeatures(1, args.policy_features, args.policy_scale)
        in_dim, width = args.policy_features + 2, args.policy_width
        self.actor = BatchedMLP(1, (in_dim, width, width, 2 * action_dim), (1.0, 1.0, 0.1))
        self.critics, self.targets = (TwinCritics(in_dim + action_dim, width) for _ in range(2))
        self.targets.load_state_dict(self.critics.state_dict())
        self.targets.requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(args.temperature)))
        self.actor_parameters, self.critic_parameters = list(self.actor.parameters()), list(self.critics.parameters())
        self.target_parameters = list(self.targets.parameters())
        every = [*self.actor_parameters, *self.critic_parameters, self.log_temperature]
        self.optimizer = Adam(every if self.autotune else every[:-1], args.policy_lr)
        self.losses: dict[str, Tensor] = {}

    def encode(self, state: Tensor) -> Tensor:
        """What the networks see of a state: (N, S) -> (N, features + 2)."""
        return torch.cat([self.features(state[None, :, :2])[0], SPEED * state[:, 2:]], -1)

    def sample(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and the logarithm of their density over the uniform one: (N, code) -> (N, A), (N,)."""
        mean, raw = self.actor(code[None])[0].chunk(2, -1)  # (N, A) each
        mean = self.MAX_MEAN * (mean / self.MAX_MEAN).tanh()
        log_std = self.MIN_LOG_STD + 0.5 * (self.MAX_LOG_STD - self.MIN_LOG_STD) * (raw.tanh() + 1)
        noise = torch.randn_like(mean)
        before = torch.addcmul(mean, log_std.exp(), noise)  # (N, A), a = tanh(before)
        # log N(before) - log(1 - tanh(before)^2), the latter as 2 (log 2 - before - softplus(-2 before)), + log 2
        log_prob = 2 * (before + F.softplus(-2 * before)) - log_std - 0.5 * noise.square()  # (N, A)
        constant = mean.shape[-1] * (0.5 * math.log(2 * math.pi) + math.log(2))
        return before.tanh(), log_prob.sum(-1) - constant

    @torch.no_grad()
    def act(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions, with their log-densities: (N, S) -> (N, A), (N,)."""
        return self.sample(self.encode(state))

    @torch.no_grad()
    def value(self, state: Tensor) -> Tensor:
        """Soft value by the target critics: (N, S) -> (N,)."""
        code = self.encode(state)
        action, log_prob = self.sample(code)
        return self.targets(code, action).amin(0) - self.log_temperature.exp() * log_prob

    def update(self, states: Tensor, actions: Tensor, returns: Tensor) -> None:
        """One gradient step of everything on a batch: (N, S), (N, A), (N,)."""
        code, temperature = self.encode(states), self.log_temperature.exp().detach()
        critic_loss = (self.critics(code, actions) - returns).square().mean(1).sum()
        new_actions, log_prob = self.sample(code)
        value = self.critics(code, new_actions).amin(0)  # (N,)
        actor_loss = (temperature * log_prob - value).mean()
        critic_loss.backward(inputs=self.critic_parameters)
        actor_loss.backward(inputs=self.actor_parameters)  # the critics' weights get no gradient from it
        if self.autotune:
            self.log_temperature.grad = -(log_prob.detach().mean() + self.target_entropy)
        self.optimizer.step()  # of actor, critics and temperature
        with torch.no_grad():
            torch._foreach_lerp_(self.target_parameters, self.critic_parameters, self.tau)
        self.losses = {"critic_loss": critic_loss, "actor_loss": actor_loss, "entropy": -log_prob, "value": value}

    def last_losses(self) -> dict[str, float]:
        """Means of the last update, fetched only when they are logged."""
        return {name: float(value.detach().mean()) for name, value in self.losses.items()}


# ------------------------------------------------------------------------------------------------------ imagination


@torch.no_grad()
def imagine_from(
    policy: SAC, dynamics: PriorEnsemble | MazeGP, start: Tensor, horizon: int, random_actions: float
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Trajectories of J steps from the states start (K, S), inside the model: no real environment takes part.

    Returns states (J, K, S), actions, log-densities of the policy's actions, outcomes (J, K, D), and the mean and
    variance that the model predicted, ([M,] J * K, D), from which the bonus is computed in one call.
    """
    state, steps = start, []
    for _ in range(horizon):
        action, log_prob = policy.act(state)  # (K, A), (K,)
        own = torch.rand_like(action[:, :1]) >= random_actions  # (K, 1)
        action = torch.where(own, action, 2 * torch.rand_like(action) - 1)
        y = dynamics.advance(torch.cat([state, action], -1))  # (K, D)
        steps.append((state, action, log_prob, y))
        state = state + y[:, :-1]
    trajectories = [torch.stack(column) for column in zip(*steps, strict=True)]  # (J, K, ...) each
    x = torch.cat(trajectories[:2], -1).flatten(0, 1)  # (J * K, S + A)
    return trajectories, *dynamics.predict(x)


def lambda_returns(rewards: Tensor, discounts: Tensor, next_values: Tensor, entropies: Tensor, lam: float) -> Tensor:
    """Soft returns of imagined trajectories; tensors and result are (J, K).

    They go on after random actions, as in Peng and Williams' Q(lambda): values travel many steps in one planning.
    """
    returns = torch.zeros_like(rewards)
    ahead = next_values[-1]
    for j in reversed(range(len(rewards))):
        returns[j] = rewards[j] + discounts[j] * ahead
        if j > 0:
            ahead = torch.lerp(next_values[j - 1], returns[j] + entropies[j], lam)
    return returns


@torch.no_grad()
def plan(
    policy: SAC,
    dynamics: PriorEnsemble | MazeGP,
    start: Tensor,
    horizon: int,
    lam: float,
    eta: float,
    seen: Tensor,
    args: Args,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Alg. 1, lines 7 to 9: trajectories of J actions from the states start (K, S), and their returns.

    Rewards beyond those seen are not believed. Returns states (J, K, S), actions, next states, returns (J, K) and
    survival (J, K), the probability that a trajectory goes on. It ends at the goal, where the reward is 1. With a
    bonus, a gain of information leaves exp(-EIG) of the possible worlds, and a trajectory is in one of them with that
    probability; otherwise it would gain the same information again and again. Without a bonus EIG must not act: where
    values are negative, an early end is a reward.
    """
    (states, actions, log_probs, outcomes), mean, var = imagine_from(
        policy, dynamics, start, horizon, args.random_actions
    )
    next_states = states + outcomes[..., :-1]
    rewards = outcomes[..., -1].clamp(seen.min(), seen.max())
    survival = 1 - rewards
    if eta:  # r = r^e + eta r^i
        rewards = rewards + eta * getattr(dynamics, args.bonus)(mean, var).view_as(rewards)
        survival = survival * (-dynamics.eig(mean, var)).exp().view_as(rewards)
    next_values = policy.value(next_states.flatten(0, 1)).view_as(rewards)
    entropies = -policy.log_temperature.exp() * log_probs
    returns = lambda_returns(rewards, args.gamma * survival, next_values, entropies, lam)
    return states, actions, next_states, returns, survival


# --------------------------------------------------------------------------------------------------------- pictures

PIXELS = 64  # of a cell
WALL, FLOOR, START, GOAL = (45, 50, 60), (246, 246, 244), (35, 35, 40), (20, 150, 70)
TIME = ((165, 190, 240), (75, 95, 200), (135, 45, 150), (215, 45, 70), (250, 150, 30))  # first to last step
HEAT = ((255, 250, 235), (253, 200, 120), (235, 95, 50), (140, 10, 45))  # 0 to the largest value


def colours(values: np.ndarray, scale: tuple) -> np.ndarray:
    """Values in [0, 1] as colours of a scale: (...) -> (..., 3)."""
    stops = np.linspace(0, 1, len(scale))
    return np.stack([np.interp(values, stops, channel) for channel in np.array(scale).T], -1).astype(np.uint8)


def draw(maze: Maze, squares: np.ndarray | None = None, path: np.ndarray | None = None) -> np.ndarray:
    """The maze with values of its squares (0 white, the largest red) or a path (n, 2) (early blue, late orange).

    The bar at the bottom is the scale. Returns a picture (height, width, 3).
    """

    def large(grid: np.ndarray, pixels: int) -> np.ndarray:
        return grid.repeat(pixels, 0).repeat(pixels, 1)

    floor = large(maze.reachable, PIXELS)
    picture = np.where(floor[..., None], np.uint8(FLOOR), np.uint8(WALL))  # (height, width, 3)
    if squares is not None:
        values = large(squares / max(float(squares.max()), 1e-12), PIXELS // Maze.PARTS)
        picture[floor] = colours(values[floor], HEAT)
    if path is not None:
        rows, columns = maze.cell(path, PIXELS)
        for i, j in np.ndindex(4, 4):  # a line of four pixels, which has no gaps at full speed
            picture[rows + i - 2, columns + j - 2] = colours(np.linspace(0, 1, len(path)), TIME)
    pixels = maze.centre(np.stack(np.indices(floor.shape), -1), PIXELS)  # (height, width, 2), their positions
    to_start, to_goal = (np.linalg.norm(pixels - place, axis=-1) for place in (maze.start, maze.goal))
    picture[(to_start < 0.12) | (abs(to_start - 0.2) < 0.03)] = START
    picture[(to_goal < 0.12) | (abs(to_goal - 0.45) < 0.03)] = GOAL
    bar = colours(np.linspace(0, 1, picture.shape[1]), TIME if squares is None else HEAT)
    return np.concatenate([picture, np.broadcast_to(bar, (PIXELS // 4, *bar.shape))])


@torch.no_grad()
def eig_map(maze: Maze, dynamics: PriorEnsemble | MazeGP, device: torch.device) -> np.ndarray:
    """EIG of every square, the mean over standing still and moving at half speed in four directions."""
    positions = torch.as_tensor(maze.free_positions(), dtype=torch.float32, device=device)  # (P, 2)
    pushes = torch.tensor([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], dtype=torch.float32, device=device)  # (5, 2)
    motion = torch.cat([2.5 * pushes, pushes], -1)  # (5, 4), velocity and action
    x = torch.cat([positions.repeat_interleave(5, 0), motion.repeat(len(positions), 1)], -1)  # (P * 5, S + A)
    squares = np.zeros(maze.visits.shape)
    squares[maze.fine(maze.reachable)] = dynamics.eig(*dynamics.predict(x)).view(-1, 5).mean(1).cpu().numpy()
    return squares


def save_picture(writer: SummaryWriter, run_dir: Path, name: str, picture: np.ndarray, step: int) -> None:
    writer.add_image(name, picture, step, dataformats="HWC")
    png = summary.image(name, picture, dataformats="HWC").value[0].image.encoded_image_string
    (run_dir / f"{name}.png").write_bytes(png)


def record_video(maze: Maze, args: Args, resets: int, actions: np.ndarray, folder: Path) -> None:
    """The last episode before a camera: the same seed, resets and actions give the same states."""
    env = make_env(maze, args.reset_interval, args.jitter, "rgb_array")
    env = gym.wrappers.RecordVideo(env, str(folder), episode_trigger=lambda episode: episode == resets)
    env.reset(seed=args.seed)
    for _ in range(resets):
        env.reset()
    for action in actions:
        env.step(action)
    env.close()


# -------------------------------------------------------------------------------------------------------------- main


def refuse(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def check(args: Args) -> None:
    """Refuse bad input before anything is written."""
    if args.method == "pts-be" and args.bonus == "error":
        refuse("--bonus error needs the real next state: use it with --method be, or choose eig, entropy or variance")
    for name, value in asdict(args).items():
        flag = f"--{name.replace('_', '-')}"
        if type(value) is int and value < 1 and name not in ("seed", "warmup_steps", "lookahead"):
            refuse(f"{flag} is {value}, it must be at least 1")
        if type(value) in (int, float) and not 0 <= value < math.inf:
            refuse(f"{flag} is {value}, it must be a number from 0 up")
    for name in ("gamma", "lam", "tau", "random_actions"):
        if getattr(args, name) > 1:
            refuse(f"--{name.replace('_', '-')} is {getattr(args, name)}, it must be at most 1")
    for name in ("model_scale", "prior_scale", "policy_scale", "temperature"):
        if getattr(args, name) == 0:
            refuse(f"--{name.replace('_', '-')} is 0, it must be larger")
    if args.jitter > 0.25:
        refuse(f"--jitter is {args.jitter}, it must be at most 0.25: start and goal would touch walls")
    for name in ("total_timesteps", "reset_interval", "warmup_steps", "policy_interval", "model_interval"):
        if getattr(args, name) % args.action_repeat:
            flag, value = f"--{name.replace('_', '-')}", getattr(args, name)
            refuse(f"{flag} is {value}, it must be a multiple of --action-repeat, {args.action_repeat}")
    if args.cuda and not torch.cuda.is_available():
        refuse("--cuda was asked for, but PyTorch sees no GPU: leave it out to run on the CPU")
    for flag, packages in {"track": ("wandb",), "capture_video": ("moviepy",)}.items():
        missing = [package for package in packages if find_spec(package) is None]
        if getattr(args, flag) and missing:
            refuse(f"--{flag.replace('_', '-')} needs packages that are not installed: pip install {' '.join(missing)}")
    maze = read_maze(args.maze)
    if args.capture_video:
        check_renderer(maze)


def check_renderer(maze: Maze) -> None:
    """Refuse where MuJoCo cannot draw off-screen. Gymnasium reads MUJOCO_GL when it draws for the first time."""
    os.environ["MUJOCO_GL"] = RENDERER or ("egl" if sys.platform == "linux" else "glfw")
    reason = None
    with contextlib.redirect_stderr(io.StringIO()):  # what fails warns as well, and again when it is deleted
        try:
            env = make_env(maze, 1, render_mode="rgb_array")
            env.reset()
            env.render()
            env.close()
        except Exception as error:  # each renderer fails in its own way
            reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
    if reason:
        refuse(
            f"--capture-video: MuJoCo cannot draw with MUJOCO_GL={os.environ['MUJOCO_GL']} ({reason}): "
            "install EGL or OSMesa and set MUJOCO_GL to egl or osmesa"
        )


def require_finite(values: dict[str, float], step: int) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise FloatingPointError(f"{name} is {value} at step {step}")


def git_commit() -> str | None:
    """Commit of this file's repository, with -dirty where Python files differ from it."""

    def git(*command: str) -> str:
        folder = str(Path(__file__).resolve().parent)
        return subprocess.run(
            ["git", "-C", folder, *command], capture_output=True, text=True, check=False
        ).stdout.strip()

    commit = git("rev-parse", "HEAD")
    return commit + ("-dirty" if git("status", "--porcelain", "--", "*.py") else "") if commit else None


def write_json(path: Path, content: dict) -> None:
    """Atomic: a reader sees the whole file or none."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(temporary, path)


def main(args: Args) -> dict:
    check(args)
    maze = read_maze(args.maze)
    start_time = time.time()
    env_name = f"PointMaze-{Path(args.maze).stem}"
    run_name = args.run_name or f"{env_name}__{args.exp_name}__{args.seed}__{int(start_time)}"
    run_dir = Path("runs") / run_name
    if args.track:
        import wandb

        wandb.init(project="ptsbe", name=run_name, config=asdict(args), sync_tensorboard=True, save_code=True)
    writer = SummaryWriter(run_dir)
    table = "\n".join(f"|{name}|{value}|" for name, value in asdict(args).items())
    writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{table}")

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if args.cuda else "cpu")
    env = make_env(maze, args.reset_interval, args.jitter)
    env.action_space.seed(args.seed)
    state_dim, action_dim = env.observation_space.shape[0], env.action_space.shape[0]
    in_dim, out_dim = state_dim + action_dim, state_dim + 1

    # Alg. 1, line 1: policy, buffer, dynamics model
    with device:  # whatever is made here lives on it
        policy = SAC(action_dim, args)
        if args.dynamics == "de":
            dynamics = PriorEnsemble(in_dim, out_dim, args)
        else:
            features = ResNetFeatures(in_dim, args.model_width) if args.dynamics == "dk" else None
            dynamics = MazeGP(in_dim, out_dim, args, features)
    # D: a hold that ends at the goal is shorter than the others, so that their number is not known
    xs = torch.zeros(args.total_timesteps, in_dim, device=device)  # [state, action]
    ys = torch.zeros(args.total_timesteps, out_dim, device=device)  # [state change, reward]
    terminations = torch.zeros(args.total_timesteps, device=device)
    stored_bonus = torch.zeros(args.total_timesteps, device=device)  # by the model as it was then, 0 before the first
    plannings: list[tuple[Tensor, Tensor, Tensor]] = []  # D_model: states, actions and returns of the last ones
    in_walls: list[float] = []
    path = np.zeros((args.total_timesteps + 1, 2))  # visited positions

    with_bonus = args.method in ("be", "pts-be")
    plans = args.method in ("pts", "pts-be")
    needs_model = plans or args.method == "be"
    fitted = 0  # transitions that the dynamics model has seen
    step, count = 0, 0  # of the simulator, of transitions
    solved_step, episode_start, first_action, episodes, total_return, failure = None, 0, 0, 1, 0.0, None

    state, _ = env.reset(seed=args.seed)
    path[0] = state[:2]
    maze.visit(state[:2])
    min_distance = float(maze.distance(state[:2]))
    next_print = time.time() + 0.5
    try:
        while step < args.total_timesteps:  # Alg. 1, line 2
            eta = args.eta * args.eta_decay ** (step / 1000) if with_bonus else 0.0
            # Alg. 1, line 3: act
            state_tensor = torch.as_tensor(state, device=device)
            if args.method == "random" or step < args.warmup_steps:
                action = env.action_space.sample()
            elif plans and fitted and args.lookahead:  # the first action of the best of K trajectories from here
                start = state_tensor.expand(args.rollouts, -1)
                _, actions, _, returns, _ = plan(
                    policy, dynamics, start, args.lookahead, 1.0, eta, ys[:count, -1], args
                )
                action = actions[0, returns[0].argmax()].cpu().numpy()
            else:
                action = policy.act(state_tensor[None])[0][0].cpu().numpy()
            for _ in range(args.action_repeat):
                next_state, reward, terminated, truncated, _ = env.step(action)
                require_finite({"the state": float(next_state.sum())}, step)
                step += 1
                path[step] = next_state[:2]
                maze.visit(next_state[:2])
                min_distance = min(min_distance, float(maze.distance(next_state[:2])))
                if terminated or truncated or step == args.total_timesteps:
                    break

            # Alg. 1, line 4: store the transition
            xs[count] = torch.cat([state_tensor, torch.as_tensor(action, device=device)])
            ys[count, :-1] = torch.as_tensor(next_state, device=device) - state_tensor
            ys[count, -1] = reward
            terminations[count] = float(terminated)
            count += 1
            total_return += float(reward)
            state = next_state
            if terminated or truncated:
                writer.add_scalar("charts/episodic_length", step - episode_start, step)
                writer.add_scalar("charts/episodic_return", float(reward), step)  # it is 0 before the goal
                if terminated:
                    solved_step = solved_step or step
                    if args.stop_at_goal:
                        break
                if step < args.total_timesteps:
                    episode_start, first_action = step, count
                    episodes += 1
                    state, _ = env.reset()
                    maze.visit(state[:2])

            if count % 5 == 0:
                writer.add_scalar("charts/coverage", maze.coverage(), step)
                writer.add_scalar("charts/min_distance", min_distance, step)
            if time.time() > next_print:
                next_print = time.time() + 0.2
                sps = step / (time.time() - start_time)
                left = (args.total_timesteps - step) / sps
                status = f"step {step}/{args.total_timesteps}  coverage {maze.coverage():.2f}  {sps:.0f} steps/s"
                print(f"\r{status}  {left:.0f} s left  ", end="", flush=True)

            if step < args.warmup_steps or args.method == "random":  # Alg. 1, line 5
                continue

            # Alg. 1, lines 14 to 18. The model comes first, so that the first planning has one.
            if needs_model and count * args.action_repeat % args.model_interval == 0:
                if fitted:
                    new_x, new_y = xs[fitted:count], ys[fitted:count]
                    mean, var = dynamics.predict(new_x)
                    writer.add_scalar("bonus/eig", dynamics.eig(mean, var).mean(), step)
                    writer.add_scalar("bonus/entropy", dynamics.entropy(mean, var).mean(), step)
                    writer.add_scalar("bonus/error", dynamics.error(mean, var, new_y).mean(), step)
                    outcome = (new_y,) if args.bonus == "error" else ()
                    stored_bonus[fitted:count] = getattr(dynamics, args.bonus)(mean, var, *outcome)
                updates = args.model_updates if args.dynamics == "de" else args.gp_updates
                updates = updates if fitted else 10 * updates
                losses = {"dynamics_loss": dynamics.fit(xs[:count], ys[:count], updates)}  # Alg. 1, line 16
                fitted = count
                require_finite(losses, step)
                writer.add_scalar("losses/dynamics_loss", losses["dynamics_loss"], step)
                writer.add_scalar("charts/SPS", step / (time.time() - start_time), step)

            if count * args.action_repeat % args.policy_interval or (needs_model and not fitted):  # Alg. 1, line 6
                continue
            if plans:
                # Alg. 1, lines 7 and 8: K imagined trajectories of J steps, in random order: members take equal shares
                third = args.rollouts // 3
                here = args.rollouts - 2 * third
                start = xs[torch.randint(count, (args.rollouts,), device=device), :state_dim]  # (K, S)
                start[:here] = torch.as_tensor(state, device=device)
                start[here : here + third] += args.start_noise * torch.randn_like(start[here : here + third])
                order = torch.randperm(args.rollouts, device=device)
                start = start[order]
                states, actions, next_states, returns, survival = plan(
                    policy, dynamics, start, args.horizon, args.lam, eta, ys[:count, -1], args
                )
                alive = torch.cat([torch.ones_like(survival[:1]), survival[:-1].cumprod(0)])
                alive = torch.rand_like(alive) < alive  # (J, K)
                plannings = [*plannings, (states[alive], actions[alive], returns[alive])][-args.planning_window :]
                undisplaced = alive & ((order < here) | (order >= here + third))
                in_walls.append(float(maze.inside_wall(next_states[undisplaced][:, :2].cpu().numpy()).mean()))
                writer.add_scalar("charts/imagined_in_walls", in_walls[-1], step)
                states, actions, returns = (torch.cat(column) for column in zip(*plannings, strict=True))
                for index in torch.randint(len(states), (args.policy_updates, args.policy_batch), device=device):
                    policy.update(states[index], actions[index], returns[index])  # Alg. 1, lines 10 to 12
            else:  # the same number of updates on real transitions
                rewards = ys[:count, -1]
                if with_bonus and args.be_relabel:
                    outcome = (ys[:count],) if args.bonus == "error" else ()
                    rewards = rewards + eta * getattr(dynamics, args.bonus)(*dynamics.predict(xs[:count]), *outcome)
                elif with_bonus:
                    rewards = rewards + eta * stored_bonus[:count]
                for index in torch.randint(count, (args.policy_updates, args.policy_batch), device=device):
                    states, actions = xs[index].split((state_dim, action_dim), -1)  # (B, S), (B, A)
                    next_values = policy.value(states + ys[index, :-1])
                    discounts = args.gamma * (1 - terminations[index])
                    policy.update(states, actions, rewards[index] + discounts * next_values)
            losses = policy.last_losses()
            require_finite(losses, step)
            for name, value in losses.items():
                writer.add_scalar(f"losses/{name}", value, step)
    except FloatingPointError as error:
        failure = str(error)

    wall_time = time.time() - start_time
    writer.add_scalar("charts/coverage", maze.coverage(), step)
    writer.add_scalar("charts/min_distance", min_distance, step)
    path = path[: step + 1]
    save_picture(writer, run_dir, "visits", draw(maze, path=path), step)
    np.savez_compressed(run_dir / "visits.npz", visits=maze.visits, path=path.astype(np.float32))
    if fitted:
        save_picture(writer, run_dir, "eig_map", draw(maze, squares=eig_map(maze, dynamics, device)), step)
    writer.close()
    env.close()
    if args.save_model or failure:
        torch.save({"policy": policy.state_dict(), "dynamics": dynamics.state_dict()}, run_dir / "model.pt")
    if failure:
        print(f"\nerror: {failure}; what was learned until then is in {run_dir / 'model.pt'}", file=sys.stderr)
        raise SystemExit(1)

    result = {
        "script": Path(__file__).stem,
        "method": args.method,
        "bonus": args.bonus if with_bonus else None,
        "be_relabel": args.be_relabel if args.method == "be" else None,
        "dynamics": args.dynamics if needs_model else None,
        "env": env_name,
        "seed": args.seed,
        "total_timesteps": args.total_timesteps,
        "steps": step,
        "solved": solved_step is not None,
        "solved_step": solved_step,
        "coverage": maze.coverage(),
        "episodic_return": total_return,
        "min_distance": min_distance,
        "imagined_in_walls": float(np.mean(in_walls[-10:])) if in_walls else None,
        "wall_time_s": wall_time,
        "sps": step / wall_time,
        "versions": {name: metadata.version(name) for name in ("torch", "gymnasium", "mujoco")},
        "git_commit": git_commit(),
    }
    write_json(run_dir / "result.json", result)
    if args.capture_video:
        print(f"\rrecording the last episode, {step - episode_start} steps{'':40}", end="", flush=True)
        actions = xs[first_action:count, state_dim:].cpu().numpy().repeat(args.action_repeat, 0)
        record_video(maze, args, episodes - 1, actions[: step - episode_start], run_dir / "videos")
    solved = f"goal reached at step {solved_step}" if solved_step else "goal not reached"
    print(f"\r{run_name}: {solved}, coverage {maze.coverage():.2f}, {wall_time:.1f} s, {run_dir / 'visits.png'}{'':9}")
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(tyro.cli(Args))
