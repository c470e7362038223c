"""PTS-BE with PPO on the unichain: planning to explore with the expected information gain (EIG).

    python ptsbe_ppo_unichain.py --dynamics gp --seed 1
    python ptsbe_ppo_unichain.py --length 100 --total-timesteps 400

The file reads top to bottom: arguments, environment, dynamics models, bonuses, solver, imagination, input and output,
and in `main` Algorithm 1 of the paper (Caron, Hicks and Mavroudis, TMLR 2025) with its line numbers.
"""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from gp_models import SVGP, Adam, ResNetFeatures, Standardizer


@dataclass
class Args:
    # the experiment
    method: Literal["random", "ppo", "be", "pts", "pts-be"] = "pts-be"  # be: with the bonus; pts: on imagined data
    bonus: Literal["eig", "entropy", "variance", "error"] = "eig"  # intrinsic reward r^i of be and pts-be
    dynamics: Literal["de", "gp", "dk"] = "de"  # model p(f): deep ensemble, sparse variational GP, deep kernel
    length: int = 50  # states of the chain, L
    swap: Literal["none", "half", "random"] = "none"  # left and right change places: beyond the middle, at random
    noise: float = 0.0  # probability that a random action takes the place of the chosen one
    extrinsic: bool = True  # be, pts-be: add the reward of the environment to the bonus
    total_timesteps: int = 200  # steps of the one run, without resets, T (400 for --length 100)
    # the run
    seed: int = 1  # of environment, networks and all sampling
    run_name: str | None = None  # folder under runs/, instead of {env}__{method}-{bonus}-{dynamics}__{seed}__{time}
    cuda: bool = False  # networks on the GPU; the CPU is faster at the default sizes
    track: bool = False  # log to Weights and Biases as well
    wandb_project_name: str = "ptsbe"  # project there
    wandb_entity: str | None = None  # user or team there
    capture_video: bool = False  # film the policy after the run
    save_model: bool = False  # save policy and dynamics model as model.pt
    # Algorithm 1
    warmup_steps: int = 10  # steps with random actions before the first update, t_warm
    policy_interval: int = 5  # steps between two updates of the policy, t_policy
    model_interval: int = 5  # steps between two updates of the dynamics model, t_model
    rollouts: int = 32  # imagined trajectories of a planning, K
    horizon: int = 30  # actions in an imagined trajectory, J
    replayed_starts: float = 0.5  # share of trajectories that start in visited states, the rest in the present one
    random_actions: float = 0.2  # share of imagined actions that are random and of trajectories that keep to one action
    lookahead: int = 8  # act with the first of so many imagined actions, of the best of K trajectories; 0: policy
    policy_updates: int = 20  # gradient steps on the policy in an update, G
    model_updates: int = 30  # gradient steps on the dynamics model in an update, ten times as many in the first
    eta: float = 0.3  # weight of the bonus, eta: a constant, so that the bonus fades as the model learns
    eta_decay: float = 1.0  # eta_t = eta * eta_decay ** (t / 1000)
    # dynamics model
    ensemble_size: int = 5  # networks in the deep ensemble, M
    position_dims: int = 0  # leading variables of the observation that tell the place; 0: all
    prior_size: float = 2.0  # deviation of what members expect of an unknown place, in units of the targets' deviation
    eig_outputs: int = 1  # leading outputs of the model that EIG counts: state, reward, end
    eig_noise: float = 0.5  # noise that EIG assumes at least, in the same units: small disagreements count little
    # PPO
    policy_lr: float = 2e-3  # learning rate of actor and critic
    gamma: float = 0.95  # discount factor
    gae_lambda: float = 1.0  # lambda of the generalised advantage estimate
    minibatches: int = 4  # batches that a pass over the trajectories is cut into
    clip_coef: float = 1.0  # clipping range of the probability ratio
    ent_coef: float = 0.05  # weight of the policy's doubt, c_2: how far it stays from being sure
    advantage_floor: float = 0.1  # added to the advantages' deviation: where all is known, doubt decides


TUNED = {  # what a method or a model runs with where no flag says otherwise
    "ppo": {"policy_interval": 32, "policy_updates": 80, "minibatches": 1, "policy_lr": 5e-3, "gamma": 0.99}
    | {"gae_lambda": 0.9, "clip_coef": 0.2, "ent_coef": 0.003, "advantage_floor": 1e-8},
    "be": {"policy_interval": 16, "policy_updates": 10, "minibatches": 1, "policy_lr": 1e-3, "gae_lambda": 0.95}
    | {"ent_coef": 0.03, "advantage_floor": 1e-8},
    "gp": {"model_updates": 2, "eig_noise": 0.3},
    "dk": {"model_updates": 2, "eig_noise": 0.3, "eta": 1.0},
}


def parse(argv: list[str] | None = None) -> Args:
    """The flags of the command line, those that are not given as TUNED has them for the method and the model."""
    argv = sys.argv[1:] if argv is None else argv
    choice = tyro.cli(Args, args=[word for word in argv if word not in ("-h", "--help")])
    tuned = TUNED.get(choice.method, {}) | TUNED.get(choice.dynamics, {})
    return tyro.cli(Args, args=argv, default=replace(Args(), **tuned), description=__doc__)


RANGES = {  # least and largest value of flags; of all other numbers 1 and infinity
    "seed position_dims lookahead eta eta_decay prior_size eig_noise": (0, math.inf),
    "policy_lr clip_coef ent_coef advantage_floor": (0, math.inf),
    "noise replayed_starts random_actions gamma gae_lambda": (0, 1),
    "length": (3, math.inf),
}

PICTURES, FILMED = 100, 100  # steps between two pictures for TensorBoard; steps of a video
MODEL_WIDTH, MODEL_BATCH, MODEL_LR, MODEL_DROPOUT = 64, 64, 4e-3, 0.0  # networks of the ensemble and their training
# Fourier features of the place: of the networks, of priors; the first variable of the observation that networks see
MODEL_FEATURES, PLACE_FEATURES, BODY = 64, 128, 0
LENGTH_SCALES = 0.42, 0.42  # how sharply the dynamics may change; how far from visited places members disagree
GP_UNITS = (0.3, 8.0)  # of states and actions for the GP, none: those of the data
GP_FIT = {"gp": (0.05, 0.3), "dk": (0.005, math.inf)}  # learning rate; prior deviation of log length-scales
POLICY_SCALE = 0.8  # length-scale of the features that the policy sees


# ----------------------------------------------------------------------------------------------------- environment


def coding(length: int) -> np.ndarray:
    """What the agent sees of each state, within [-1, 1]: (L, S). Another coding of the state is a line here."""
    return (2 * np.arange(length)[:, None] / (length - 1) - 1).astype(np.float32)


class Unichain(gym.Env):
    """States 0 to L - 1 in a row; start in 1; actions left, stay, right; walls at both ends.

    The state arrived in pays 0.001 if it is the first and 1 if it is the last; nothing ends an episode. With
    probability noise, a random action takes the place of the chosen one. Where `swapped`, left and right change places.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, swapped: np.ndarray, noise: float = 0.0, render_mode: str | None = None):
        self.swapped, self.noise, self.render_mode = swapped, noise, render_mode  # (L,), bool
        self.codes, self.index = coding(len(swapped)), 1
        self.observation_space = gym.spaces.Box(-1.0, 1.0, self.codes.shape[1:], np.float32)
        self.action_space = gym.spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.index = 1
        return self.codes[self.index].copy(), {}

    def step(self, action: int):
        if self.noise and self.np_random.random() < self.noise:
            action = self.np_random.integers(3)
        move, last = int(action) - 1, len(self.swapped) - 1
        self.index = min(max(self.index + (-move if self.swapped[self.index] else move), 0), last)
        reward = {0: 0.001, last: 1.0}.get(self.index, 0.0)
        return self.codes[self.index].copy(), reward, False, False, {}

    def render(self) -> np.ndarray:
        image = np.full((16, 8 * len(self.swapped), 3), 230, np.uint8)
        image[:, 8 * self.index : 8 * self.index + 8] = (31, 78, 156)
        return image


def make_env(args: Args, render_mode: str | None = None) -> tuple[gym.Env, "Visits"]:
    """The chain, swapped as asked for: for s > L / 2, or in every state at random, drawn from the seed."""
    states, coins = np.arange(args.length), np.random.default_rng(args.seed).random(args.length)
    swapped = {"none": states < 0, "half": states > args.length // 2, "random": coins < 0.5}[args.swap]
    env = Unichain(swapped, args.noise, render_mode)
    env.action_space.seed(args.seed)
    return env, Visits(args)


def change(states: Tensor, next_states: Tensor) -> Tensor:
    """What the model learns to predict of next states."""
    return next_states - states


def changed(states: Tensor, changes: Tensor) -> Tensor:
    """States after such changes."""
    return states + changes


def valid(states: Tensor) -> Tensor:
    """Imagined states, put back among those that are possible: between the ends of the chain."""
    return states.clamp(-1, 1)


class Visits:
    """Where the agent was on the chain, for measures and pictures: nothing of it reaches the agent."""

    ACTIONS = (("left", (31, 78, 156)), ("stay", (120, 120, 120)), ("right", (200, 60, 20)))

    def __init__(self, args: Args):
        swap, noise = f"-swap-{args.swap}" if args.swap != "none" else "", f"-noise{args.noise:g}" if args.noise else ""
        self.name, self.length = f"Unichain-{args.length}{swap}{noise}", args.length
        self.codes = coding(args.length)
        self.visited, self.path, self.solved_step = np.zeros(args.length, bool), [], None

    def add(self, states: np.ndarray, step: int, terminated: bool = False) -> None:
        """States (n, S) that were visited up to a step."""
        self.path.append(np.abs(states[:, None] - self.codes).sum(-1).argmin(-1))
        self.visited[self.path[-1]] = True
        if self.solved_step is None and self.visited[-1]:
            self.solved_step = step

    def metrics(self) -> dict[str, float | int | None]:
        return {"coverage": float(self.visited.mean()), "solved_step": self.solved_step}

    def probes(self) -> np.ndarray:
        """Inputs of the model at which EIG is drawn, every action in every state: (3 * L, S + 3)."""
        actions = np.tile(np.eye(3), (self.length, 1))
        return np.concatenate([self.codes.repeat(3, 0), actions], 1).astype(np.float32)

    def picture(self, title: str, eig: np.ndarray | None = None) -> np.ndarray:
        """The EIG of the probes (3 * L,) along the chain or, without it, the path against time: (height, width, 3)."""
        path, image = np.concatenate(self.path), Image.new("RGB", (640, 730), "white")
        draw = ImageDraw.Draw(image)
        draw.font = ImageFont.load_default(22)
        if eig is None:  # time downwards
            curves = [("", (31, 78, 156), np.stack([path / (self.length - 1), np.linspace(0, 1, len(path))], -1))]
            labels = "step 0", f"step {len(path) - 1}"
        else:
            level = 1 - eig.reshape(-1, 3) / max(eig.max(), 1e-12)
            curves = [
                (*a, np.stack([np.linspace(0, 1, self.length), level[:, i]], -1)) for i, a in enumerate(self.ACTIONS)
            ]
            labels = f"{eig.max():.2g} nats", "0"
        for i, (name, colour, points) in enumerate(curves):
            draw.line([tuple(point) for point in (20, 80) + points * (600, 590)], colour, width=3)
            draw.text((300 + 100 * i, 50), name, colour)
        draw.rectangle([20, 80, 620, 670], outline="black")
        for place, text, anchor in (((20, 14), title, "la"), ((24, 84), labels[0], "la"), ((24, 666), labels[1], "ld")):
            draw.text(place, text, "black", anchor=anchor)
        draw.text((20, 690), "state 0", "black")
        draw.text((620, 690), f"state {self.length - 1}", "black", anchor="ra")
        return np.asarray(image)


# -------------------------------------------------------------------------------------------------- dynamics models
# A dynamics model maps x = [state, action] to y = [state change, reward, end] in M possible worlds: the members of an
# ensemble, or one Gaussian process. It offers fit(x, y, steps), predict(x) -> mean and variance of y in every world,
# (M, N, D), and eig(mean, var) -> (N,). The least and the largest of its data [x, y] are in `seen`.


class BatchedMLP(nn.Module):
    """Networks of the same sizes as one batch of matrices: a layer of all of them is one product."""

    def __init__(self, networks: int, sizes: tuple[int, ...]):
        super().__init__()
        self.layers = nn.ParameterList()  # weights (M, in, out) and biases (M, 1, out), drawn as torch draws nn.Linear
        for fan_in, fan_out in pairwise(sizes):
            for rows in (fan_in, 1):
                self.layers.append((2 * torch.rand(networks, rows, fan_out) - 1) / math.sqrt(fan_in))
        self.walk = tuple(self.layers)  # a ParameterList is slow to walk

    def forward(self, x: Tensor, frozen: bool = False, dropout: float = 0.0) -> Tensor:
        """(M, N, in) -> (M, N, out); frozen weights get no gradients, dropout is the share of hidden units left out."""
        layers = [layer.detach() for layer in self.walk] if frozen else self.walk
        for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
            x = F.silu(torch.baddbmm(bias, x, weight))  # (M, N, width)
            x = x * (torch.rand_like(x) >= dropout) / (1 - dropout) if dropout else x  # half the time of F.dropout
        return torch.baddbmm(layers[-1], x, layers[-2])


class FourierFeatures(nn.Module):
    """Random Fourier features (Rahimi and Recht, 2007), sqrt(2 / features) cos(w x + b), of the leading variables.

    A sum of them with standard normal weights is a draw from a Gaussian process of that length-scale; a network on top
    of them can bend at a wall, and what it learns in one place does not reach far beyond the length-scale.
    """

    def __init__(self, networks: int, dims: int, features: int, length_scale: float):
        super().__init__()
        length_scale = length_scale * math.sqrt(dims / 2)  # distances grow with the number of variables
        self.register_buffer("frequencies", torch.randn(networks, dims, features) / length_scale)
        self.register_buffer("phases", 2 * math.pi * torch.rand(networks, 1, features))

    def forward(self, x: Tensor) -> Tensor:
        """(M, N, in) -> (M, N, features)."""
        x = x[..., : self.frequencies.shape[1]]
        return math.sqrt(2) * torch.baddbmm(self.phases, x, self.frequencies).cos()


class PriorEnsemble(nn.Module):
    """M probabilistic networks (Lakshminarayanan et al., 2017), each with its own belief about what a place adds.

    That is a linear function of Fourier features of the place, so a draw from a Gaussian process. Every member begins
    with a draw of its own (a prior function, Osband et al., 2018) and keeps what the visited places leave of it:
    members agree there and disagree elsewhere. The draws sum to 0 over the members, whose mean is left to the networks
    but for reward and end, where the place also learns what the networks do not tell.
    """

    PLACE_NOISE = 0.3  # variance of what is not the place's, over that of the prior
    MIN_LOG_VAR, MAX_LOG_VAR = -6.0, 2.0  # of the standardised targets

    def __init__(self, in_dim: int, out_dim: int, args: Args):
        super().__init__()
        self.members, self.min_eig_var, self.eig_outputs = args.ensemble_size, args.eig_noise**2, args.eig_outputs
        dims = args.position_dims or out_dim - 2
        self.features = FourierFeatures(self.members, dims, MODEL_FEATURES, LENGTH_SCALES[0])
        sizes = (MODEL_FEATURES + in_dim - BODY, MODEL_WIDTH, MODEL_WIDTH, 2 * out_dim)
        self.networks = BatchedMLP(self.members, sizes)
        self.place = FourierFeatures(1, dims, PLACE_FEATURES, LENGTH_SCALES[1])
        draws = torch.randn(self.members, PLACE_FEATURES, out_dim) / math.sqrt(PLACE_FEATURES)
        draws[..., min(args.eig_outputs, out_dim - 2) :] = 0  # none on reward and end, nor on what EIG does not count
        self.register_buffer("draws", args.prior_size * (draws - draws.mean(0)))  # (M, F, D)
        self.register_buffer("weights", self.draws.clone())  # what the data leaves of them
        self.register_buffer("seen", torch.zeros(2, in_dim + out_dim))  # least and largest inputs and targets
        self.out_scale = Standardizer(out_dim)
        self.optimizer = Adam(self.networks.parameters(), MODEL_LR, fused=True)

    def encode(self, x: Tensor) -> Tensor:
        """What the networks see: (N, in) -> (M, N, code)."""
        x = x.expand(self.members, -1, -1)
        return torch.cat([self.features(x), x[..., BODY:]], -1)

    def forward(self, code: Tensor, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the standardised targets by the networks: (M, N, code) -> 2 x (M, N, D)."""
        mean, raw = self.networks(code, dropout=dropout).chunk(2, -1)
        return mean, self.MIN_LOG_VAR + (self.MAX_LOG_VAR - self.MIN_LOG_VAR) * raw.sigmoid()

    def fit(self, x: Tensor, y: Tensor, steps: int) -> float:
        """Gradient steps on the beta-NLL (Seitzer et al., 2022) with beta = 1, then the weights of the place.

        The plain likelihood explains rare contacts with walls as noise; multiplied by the variance it does not. The
        learning rate falls to 0 within every call: at a constant rate the members jitter and EIG cannot fade.
        """
        self.out_scale.fit(y)
        self.seen.copy_(torch.stack(torch.cat([x, y], -1).aminmax(dim=0)))
        code, targets, member = self.encode(x), self.out_scale(y), torch.arange(self.members)[:, None]
        for step in range(steps):
            self.optimizer.param_groups[0]["lr"] = MODEL_LR * (1 - step / steps)
            index = torch.randint(len(x), (self.members, MODEL_BATCH))  # every member draws its own batch
            mean, log_var = self(code[member, index], MODEL_DROPOUT)  # (M, B, D) each
            error, var = (targets[index] - mean).detach(), log_var.detach().exp()
            # a sum with the gradients of var * (log var + error^2 / var), the first var held fixed
            loss = (log_var * (var - error.square()) - 2 * mean * error).sum() / MODEL_BATCH
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        with torch.no_grad():  # Bayesian linear regression, of 0 on state changes: w = (P'P + r I)^-1 (P'left + r draw)
            features, ridge = self.place(x[None])[0], self.PLACE_NOISE * PLACE_FEATURES  # (N, F)
            left = targets - self(code)[0]  # (M, N, D)
            left[..., :-2] = 0
            gram = features.mT @ features + ridge * torch.eye(PLACE_FEATURES)
            self.weights.copy_(torch.linalg.solve(gram, features.mT @ left + ridge * self.draws))
        return error.square().mean().item()

    @torch.no_grad()
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and noise variance of every member: (N, in) -> 2 x (M, N, D)."""
        (mean, log_var), scale = self(self.encode(x)), self.out_scale.scale
        mean = mean + self.place(x[None]) @ self.weights
        return self.out_scale.mean + scale * mean, scale.square() * log_var.exp()

    def eig(self, mean: Tensor, var: Tensor) -> Tensor:
        """EIG of a prediction, with at least the noise eig_noise: 2 x (M, N, D) -> (N,)."""
        counted, floor = slice(self.eig_outputs), self.min_eig_var * self.out_scale.scale.square()
        return mixture_eig(mean[..., counted], var.maximum(floor)[..., counted])


class SparseGP(SVGP):
    """Sparse variational GP (Titsias, 2009) on the inputs or, as a deep kernel, on learned features of them.

    In float64: its matrices are small, and ill-conditioned where transitions are alike. It is fitted to at most ROWS
    transitions, half of them the newest and half a random part of the others, so that the cost of an update is bounded.
    """

    INDUCING, ROWS, WIDTH = 64, 2000, 64  # WIDTH: of the deep kernel's features

    def __init__(self, in_dim: int, out_dim: int, args: Args):
        features = ResNetFeatures(in_dim, self.WIDTH) if args.dynamics == "dk" else None
        units = GP_UNITS and GP_UNITS[:1] * (out_dim - 2) + GP_UNITS[1:] * (in_dim + 2 - out_dim)
        super().__init__(in_dim, out_dim, self.INDUCING, features, units=units)
        self.double()
        self.lr, self.length_prior = GP_FIT[args.dynamics]
        self.min_eig_var, self.eig_outputs = args.eig_noise**2, args.eig_outputs
        self.register_buffer("seen", torch.zeros(2, in_dim + out_dim))  # least and largest inputs and targets

    def fit(self, x: Tensor, y: Tensor, steps: int) -> float:
        self.seen.copy_(torch.stack(torch.cat([x, y], -1).aminmax(dim=0)))
        if len(x) > self.ROWS:
            older = torch.randperm(len(x) - self.ROWS // 2)[: self.ROWS // 2]
            x, y = (torch.cat([part[older], part[-self.ROWS // 2 :]]) for part in (x, y))
        return super().fit(x, y, steps, self.lr)

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outcome, in one world: (N, in) -> 2 x (1, N, D)."""
        mean, var = super().predict(x)
        return mean[None], (var + self.noise.detach().to(var.dtype))[None]

    def eig(self, mean: Tensor, var: Tensor) -> Tensor:
        """EIG of a prediction, with at least the noise eig_noise: 2 x (1, N, D) -> (N,)."""
        counted, noise = slice(self.eig_outputs), self.noise.detach().to(var.dtype)
        floor = (self.min_eig_var * self.out_scale.scale.square()).to(var.dtype)
        return gaussian_eig((var[0] - noise).clamp_min(0)[:, counted], noise.maximum(floor)[counted])


Dynamics = PriorEnsemble | SparseGP

# ---------------------------------------------------------------------------------------------------------- bonuses


def gaussian_eig(var: Tensor, noise: Tensor) -> Tensor:
    """EIG of a Gaussian posterior (Appendix B.2), 0.5 * sum_d log(1 + var_d / noise_d): (N, D), (D,) -> (N,)."""
    return 0.5 * torch.log1p(var / noise).sum(-1)


def mixture_eig(mean: Tensor, var: Tensor) -> Tensor:
    """EIG of an ensemble, the Jensen-Shannon divergence of its members (Appendix B.3): 2 x (M, N, D) -> (N,).

    -mean_i log mean_j c_ij^2 with c_ij the Bhattacharyya coefficient of two members: exact to second order for close
    members, log M for distant ones, no sampling noise. benchmark/regression.md compares it with other estimators.
    """
    half_log_var, middle = 0.5 * var.log(), 0.5 * (var[:, None] + var)  # (M, N, D), (M, M, N, D)
    distance = 0.25 * (mean[:, None] - mean).square() / middle
    log_overlap = (half_log_var[:, None] + half_log_var - middle.log() - distance).sum(-1)  # log c_ij^2, (M, M, N)
    return -log_overlap.exp().mean(1).log().mean(0)


def bonuses(dynamics: Dynamics, mean: Tensor, var: Tensor, y: Tensor | None = None) -> dict[str, Tensor]:
    """Intrinsic rewards (N,) of a prediction 2 x (M, N, D) and, where the outcome y (N, D) is known, of its error.

    A bonus of your own is a line here, and its name in Args.
    """
    scale = dynamics.out_scale.scale.to(mean.dtype)  # deviation of the targets, the unit of variance and error
    # Variance of the mixture of the worlds, (N, D); by hand: torch's var is thirty times slower over dimension 0
    total = var.mean(0) + (mean.double() - mean.double().mean(0)).square().mean(0).to(mean.dtype)
    found = {"eig": dynamics.eig(mean, var), "variance": (total / scale.square()).sum(-1)}
    found["entropy"] = 0.5 * (2 * math.pi * math.e * total).log().sum(-1)  # of a Gaussian with its moments, in nats
    if y is not None:
        found["error"] = ((y - mean.mean(0)) / scale).norm(dim=-1)
    return found


# ----------------------------------------------------------------------------------------------------------- solver


class PPO(nn.Module):
    """Actor and critic on Fourier features of the state, and the clipped update of Schulman et al. (2017)."""

    WIDTH, FEATURES, LENGTH_SCALE = 64, 64, POLICY_SCALE
    VALUE_WEIGHT, MAX_GRADIENT = 0.5, 0.5  # c_1; largest norm of the gradient

    def __init__(self, state_dim: int, num_actions: int, args: Args):
        super().__init__()
        self.args = args
        self.register_buffer("codes", torch.eye(num_actions))  # actions as the model sees them
        self.features = FourierFeatures(1, state_dim, self.FEATURES, self.LENGTH_SCALE)
        self.networks = BatchedMLP(2, (self.FEATURES + state_dim, self.WIDTH, self.WIDTH, num_actions))
        for last in self.networks.walk[-2:]:
            nn.init.zeros_(last)  # the first policy is uniform, the first value 0
        self.optimizer = Adam(self.networks.parameters(), args.policy_lr, eps=1e-5, fused=True)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and value: (N, S) -> (N, A), (N,). Actor and critic are the two networks of the batch."""
        code = torch.cat([self.features(state[None])[0], state], -1)
        out = self.networks(code.expand(2, -1, -1))  # (2, N, A)
        return out[0], out[1, :, 0]

    @torch.no_grad()
    def act(self, state: Tensor) -> Tensor:
        """Indices of actions, drawn with the Gumbel-max trick: (N, S) -> (N,)."""
        logits, _ = self(state)
        return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)

    @torch.no_grad()
    def batches(self, states: Tensor, actions: Tensor, rewards: Tensor, afters: Tensor, survival: Tensor) -> Iterator:
        """G batches of states, actions, their log-probabilities, generalised advantages and returns.

        From K trajectories of T steps: states and those after them (T, K, S), actions, rewards and survival (T, K).
        """
        args = self.args
        logits, values = self(states.flatten(0, 1))  # (T * K, A), (T * K,)
        discounts = args.gamma * survival
        deltas = rewards + discounts * self(afters.flatten(0, 1))[1].view_as(rewards) - values.view_as(rewards)
        advantages, ahead = torch.empty_like(rewards), torch.zeros_like(rewards[0])
        for t in reversed(range(len(rewards))):
            advantages[t] = ahead = deltas[t] + args.gae_lambda * discounts[t] * ahead
        log_probs = logits.log_softmax(-1).gather(1, actions.view(-1, 1))[:, 0]
        advantages = advantages.flatten()
        columns = states.flatten(0, 1), actions.flatten(), log_probs, advantages, advantages + values
        batches = []
        while len(batches) < args.policy_updates:
            batches.extend(torch.randperm(len(values)).chunk(args.minibatches))
        return [[column[batch] for column in columns] for batch in batches[: args.policy_updates]]

    def update(self, states: Tensor, actions: Tensor, old_log_probs: Tensor, advantages: Tensor, returns: Tensor):
        """One gradient step on a batch (N, S), (N,), ...; its losses and the policy's doubt."""
        args = self.args
        logits, values = self(states)  # (N, A), (N,)
        log_probs = logits.log_softmax(-1)
        ratio = (log_probs.gather(1, actions[:, None])[:, 0] - old_log_probs).clamp_max(10).exp()
        clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
        spread = advantages.std(correction=min(1, len(advantages) - 1))  # of one it is 0
        advantages = (advantages - advantages.mean()) / (spread + args.advantage_floor)
        policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
        value_loss = 0.5 * (values - returns).square().mean()
        doubt = log_probs.mean()  # -KL(uniform, policy) - log A: unlike entropy's, its gradient unsettles a sure policy
        self.optimizer.zero_grad()
        (policy_loss + self.VALUE_WEIGHT * value_loss - args.ent_coef * doubt).backward()
        nn.utils.clip_grad_norm_(self.networks.parameters(), self.MAX_GRADIENT)
        self.optimizer.step()
        return {"policy": policy_loss, "value": value_loss, "doubt": doubt}


# ------------------------------------------------------------------------------------------------------ imagination


@torch.no_grad()
def imagine(policy: PPO, dynamics: Dynamics, start: Tensor, horizon: int, eta: float, args: Args, sample: bool = True):
    """Alg. 1, lines 7 to 9: K trajectories of J steps inside the model, from the states start (K, S).

    Returns states (J, K, S), actions (J, K), rewards, the states after them, and survival, the probability that a step
    does not end the episode. A trajectory of draws lives in one world; to compare actions (the look-ahead)
    trajectories follow the mean of the worlds. No outcome is believed beyond those seen. The reward is the mean of the
    worlds: of the same expectation as a draw, without noise that would drown a bonus that fades. A policy that is
    sure would never see what lies behind another action: some actions are random, and some trajectories keep to one.
    """
    state, steps, row = start, [], torch.arange(len(start))
    keeps = row < args.random_actions * len(start)  # (K,)
    for _ in range(horizon):
        action = policy.act(state)  # (K,)
        own = torch.rand(len(start)) >= args.random_actions  # (K,)
        action = torch.where(own, action, torch.randint_like(action, len(policy.codes)))
        action = torch.where(keeps, row % len(policy.codes), action)
        mean, var = dynamics.predict(torch.cat([state, policy.codes[action]], -1))  # (M, K, D) each
        y = mean.mean(0)  # (K, D)
        if sample:
            world = row % len(mean)
            y = mean[world, row] + var[world, row].sqrt() * torch.randn_like(mean[0])
        y = y.clamp(*dynamics.seen[:, -y.shape[1] :])
        after = valid(changed(state, y[:, :-2]))
        steps.append((state, action, y, after, mean, var))
        state = after
    *columns, means, variances = zip(*steps, strict=True)
    states, actions, y, afters = (torch.stack(column) for column in columns)  # (J, K, ...) each
    mean, var = torch.cat(means, 1), torch.cat(variances, 1)  # (M, J * K, D) each
    rewards = mean[..., -2].mean(0).clamp(*dynamics.seen[:, -2]) * (args.extrinsic or args.method == "pts")
    if eta:  # r = r^e + eta r^i
        rewards = rewards + eta * bonuses(dynamics, mean, var)[args.bonus]
    return states, actions, rewards.view(actions.shape), afters, 1 - y[..., -1]


@torch.no_grad()
def look_ahead(policy: PPO, dynamics: Dynamics, state: Tensor, eta: float, args: Args) -> int:
    """The first action of the best of K imagined trajectories from a state (S,), with the value of where they end."""
    start = state.expand(args.rollouts, -1)
    _, actions, rewards, afters, survival = imagine(policy, dynamics, start, args.lookahead, eta, args, sample=False)
    returns = policy(afters[-1])[1]  # (K,)
    for j in reversed(range(args.lookahead)):
        returns = rewards[j] + args.gamma * survival[j] * returns
    return int(actions[0, returns.argmax()])


# ------------------------------------------------------------------------------------------------- input and output


def refuse(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def check(args: Args) -> None:
    """Refuse bad input before anything is written."""
    for name, value in asdict(args).items():
        low, high = next((bounds for names, bounds in RANGES.items() if name in names.split()), (1, math.inf))
        if type(value) in (int, float) and not (low <= value <= high and math.isfinite(value)):
            refuse(f"--{name.replace('_', '-')} is {value}, it must be a number from {low:g} to {high:g}")
    if args.method == "pts-be" and args.bonus == "error":
        refuse("--bonus error needs the real next state: use it with --method be, or choose eig, entropy or variance")
    if args.cuda and not torch.cuda.is_available():
        refuse("--cuda was asked for, but PyTorch sees no GPU: leave it out to run on the CPU")


def say(text: str, end: str = "\n") -> None:
    """Print, on a terminal over the line of progress, whatever has become of it."""
    try:
        print(f"\r{text:<100}" if os.isatty(1) else text, end=end, flush=True)
    except (OSError, ValueError):
        sys.stdout = None


def attempt(task, *inputs):
    """Do what may fail without loss, for a line of warning: each part fails in its own way."""
    try:
        return task(*inputs)
    except Exception as error:
        say(f"warning: {task.__name__} failed: {error}")


class Run:
    """The folder of a run: what is logged and left there, and an ending that loses nothing."""

    def __init__(self, args: Args, visits: Visits, **models: nn.Module):
        self.args, self.visits, self.models, self.start, self.stopped = args, visits, models, time.time(), 0
        self.kind = {"method": args.method, "bonus": args.bonus if args.method in ("be", "pts-be") else None}
        self.kind["dynamics"] = args.dynamics if args.method in ("be", "pts", "pts-be") else None
        self.label = "-".join(filter(None, self.kind.values()))
        name = f"{visits.name}__{self.label}__{args.seed}__{time.time_ns() // 10**6}"
        self.folder = Path("runs", args.run_name or name)
        if Path("runs").resolve() not in self.folder.resolve().parents or self.folder.exists():
            refuse(f"--run-name {args.run_name}: {self.folder} is taken or not in runs/, choose another name")
        if args.track:
            import wandb

            place = {"project": args.wandb_project_name, "entity": args.wandb_entity, "name": self.folder.name}
            wandb.init(**place, config=asdict(args), sync_tensorboard=True, save_code=True)
        self.writer = SummaryWriter(self.folder)
        table = "".join(f"|{flag}|{value}|\n" for flag, value in asdict(args).items())
        self.writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{table}")

    def __enter__(self) -> "Run":
        """From here on Ctrl-C and SIGTERM ask the loop to end."""
        numbers = signal.SIGINT, signal.SIGTERM
        self.handlers = {n: signal.signal(n, lambda n, _: setattr(self, "stopped", n)) for n in numbers}
        return self

    def __exit__(self, _, error: BaseException | None, __) -> None:
        """After the loop, or with what is not finite in it: what was learned is kept."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        failed, learned = isinstance(error, FloatingPointError), {n: m.state_dict() for n, m in self.models.items()}
        if self.args.save_model or failed:
            torch.save({"args": asdict(self.args), **learned}, self.folder / "model.pt")
        if failed:
            print(f"error: {error}; what was learned is in {self.folder}/model.pt", file=sys.stderr)
            raise SystemExit(1)

    def log(self, step: int, group: str, values: dict[str, float | Tensor]) -> None:
        """Means of values as group/name; one that is not finite ends the run."""
        for name, value in values.items():
            mean = torch.as_tensor(value).float().mean().item()
            if not math.isfinite(mean):
                raise FloatingPointError(f"{group}/{name} is {mean} at step {step}")
            self.writer.add_scalar(f"{group}/{name}", mean, step)

    def progress(self, step: int) -> None:
        """Log the measures of the visits and, on a terminal, rewrite the line that tells how far the run is."""
        metrics, speed = self.visits.metrics(), step / (time.time() - self.start)
        self.log(step, "charts", {"SPS": speed} | {name: v for name, v in metrics.items() if isinstance(v, float)})
        if os.isatty(1):
            total, pace = self.args.total_timesteps, f"coverage {metrics['coverage']:.2f}  {speed:.0f} steps/s"
            say(f"step {step}/{total}  {pace}  at most {(total - step) / speed:.0f} s left", end="")

    def finish(self, step: int, total_return: float, tasks: list[tuple]) -> dict:
        """result.json first, atomically, and again when each of the tasks, which may fail, has added to it."""
        args, metrics, seconds = self.args, self.visits.metrics(), time.time() - self.start
        result = {"script": Path(__file__).stem, **self.kind, "env": self.visits.name, "seed": args.seed}
        result |= {"total_timesteps": args.total_timesteps, "steps": step, "episodic_return": total_return}
        result |= {"solved": metrics["solved_step"] is not None, **metrics, "interrupted": self.stopped > 0}
        result |= {"wall_time_s": seconds, "sps": step / seconds, "args": asdict(args)}
        for task in [(dict,), *tasks]:  # the first adds nothing
            result |= attempt(*task) or {}
            (self.folder / "result.tmp").write_text(json.dumps(result, indent=2) + "\n")
            os.replace(self.folder / "result.tmp", self.folder / "result.json")
        self.writer.close()
        reached = f"goal reached at step {result['solved_step']}" if result["solved"] else "goal not reached"
        say(f"{reached}, coverage {result['coverage']:.2f}, {seconds:.1f} s, {self.folder}/summary.png")
        if self.stopped:
            raise SystemExit(128 + self.stopped)
        return result


def show(run: Run, step: int, dynamics: Dynamics | None) -> None:
    """The path and, once there is a model, its EIG: as pictures for TensorBoard and, side by side, as summary.png."""
    pictures = {"visits": run.visits.picture(f"{run.visits.name}, {run.label}, seed {run.args.seed}: {step} steps")}
    if dynamics is not None:
        eig = bonuses(dynamics, *dynamics.predict(torch.as_tensor(run.visits.probes())))["eig"].cpu().numpy()
        pictures["eig_map"] = run.visits.picture("expected information gain", eig)
    for name, picture in pictures.items():
        run.writer.add_image(name, picture, step, dataformats="HWC")
    Image.fromarray(np.concatenate(list(pictures.values()), 1)).save(run.folder / "summary.png")
    np.save(run.folder / "path.npy", np.concatenate(run.visits.path))


def film(policy: PPO, args: Args, folder: Path) -> None:
    """A video of what the policy does after the run, without learning."""
    env, _ = make_env(args, "rgb_array")
    env = gym.wrappers.RecordVideo(env, str(folder), disable_logger=True)
    state, _ = env.reset(seed=args.seed)
    for _ in range(FILMED):
        state, _, terminated, _, _ = env.step(int(policy.act(torch.as_tensor(state)[None])))
        if terminated:
            break
    env.close()


# -------------------------------------------------------------------------------------------------------------- main


def main(args: Args) -> dict:
    check(args)
    if args.cuda:
        torch.set_default_device("cuda")  # of every tensor that is made from here on
    torch.manual_seed(args.seed)
    env, visits = make_env(args)
    state_dim, num_actions = env.observation_space.shape[0], int(env.action_space.n)
    in_dim, out_dim = state_dim + num_actions, state_dim + 2
    plans, explores = args.method in ("pts", "pts-be"), args.method in ("be", "pts-be")
    extrinsic = args.extrinsic or not explores  # whether the reward of the environment counts

    # Alg. 1, line 1: policy, model, and D_env as rows of [state, action] and [state change, reward, end]
    policy = PPO(state_dim, num_actions, args)
    dynamics = (PriorEnsemble if args.dynamics == "de" else SparseGP)(in_dim, out_dim, args)
    xs, ys = torch.zeros(args.total_timesteps, in_dim), torch.zeros(args.total_timesteps, out_dim)
    step = fitted = updated = 0  # steps taken, and those when model and policy were last updated

    state = torch.as_tensor(env.reset(seed=args.seed)[0])
    visits.add(state[None].cpu().numpy(), step)
    with Run(args, visits, policy=policy, dynamics=dynamics) as run:
        while step < args.total_timesteps and not run.stopped:  # line 2
            eta = args.eta * args.eta_decay ** (step / 1000) if explores else 0.0
            if args.method == "random" or step < args.warmup_steps:  # line 3
                action = int(env.action_space.sample())
            elif plans and args.lookahead:
                action = look_ahead(policy, dynamics, state, eta, args)
            else:
                action = int(policy.act(state[None]))
            after, reward, terminated, truncated, info = env.step(action)
            if not np.isfinite(after).all():
                raise FloatingPointError(f"the state after step {step} is not finite")
            after = torch.as_tensor(after)
            xs[step] = torch.cat([state, policy.codes[action]])  # line 4
            ys[step] = torch.cat([change(state, after), torch.tensor([reward, terminated])])
            state, step = after, step + 1
            visits.add(state[None].cpu().numpy(), step, terminated)
            run.progress(step)
            run.log(step, "charts", {"cumulative_reward": ys[:step, -2].sum()})
            if terminated or truncated:
                episode = info["episode"]
                run.log(step, "charts", {"episodic_return": episode["r"], "episodic_length": episode["l"]})
                state = torch.as_tensor(env.reset()[0])
                visits.add(state[None].cpu().numpy(), step)
            if step % PICTURES == 0:
                attempt(show, run, step, dynamics if fitted else None)

            if args.method == "random" or step < args.warmup_steps:  # line 5
                continue
            x, y = xs[:step], ys[:step]
            # lines 12 to 14, before the policy, whose first planning needs a model
            if args.method != "ppo" and (not fitted or step % args.model_interval == 0):
                before = bonuses(dynamics, *dynamics.predict(x[fitted:]), y[fitted:])
                loss = dynamics.fit(x, y, args.model_updates if fitted else 10 * args.model_updates)
                learned = bonuses(dynamics, *dynamics.predict(x[fitted:]))["eig"]
                run.log(step, "bonus", before | {"eig_after": learned})
                run.log(step, "losses", {"dynamics": loss})
                fitted = step
            if step % args.policy_interval:  # line 6
                continue
            if plans:  # lines 7 to 9
                replayed = x[torch.randint(step, (args.rollouts,)), :state_dim]  # (K, S)
                start = torch.where(torch.rand(args.rollouts, 1) < args.replayed_starts, replayed, state)
                trajectories = imagine(policy, dynamics, start, args.horizon, eta, args)
            else:  # the real steps since the last update, as one trajectory
                states, actions = x[updated:, None, :state_dim], x[updated:, state_dim:].argmax(-1)[:, None]
                rewards = extrinsic * y[updated:, -2]
                if eta:  # line 9 on real transitions
                    found = bonuses(dynamics, *dynamics.predict(x[updated:]), y[updated:])
                    rewards = rewards + eta * found[args.bonus]
                afters = valid(changed(states, y[updated:, None, :state_dim]))
                trajectories = states, actions, rewards[:, None], afters, 1 - y[updated:, -1:]
            for batch in policy.batches(*trajectories):  # line 10
                losses = policy.update(*batch)  # line 11
            run.log(step, "losses", losses)
            updated = step

    tasks = [(show, run, step, dynamics if fitted else None)]
    tasks += [(film, policy, args, run.folder / "videos")] if args.capture_video else []
    return run.finish(step, ys[:step, -2].sum().item(), tasks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(parse())
