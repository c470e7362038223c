"""PTS-BE with PPO on Noisy Mountain Car: planning to explore with the expected information gain (EIG).

    python ptsbe_ppo_mountaincar.py --noise heteroskedastic --seed 1

The file reads top to bottom: arguments, environment, dynamics models, bonuses, policy, imagination, main loop.
"""

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
from gymnasium.envs.classic_control import MountainCarEnv
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from gp_models import SVGP, ResNetFeatures, Standardizer


@dataclass
class Args:
    # the experiment
    method: Literal["random", "ppo", "be", "pts", "pts-be"] = "pts-be"
    """ppo, be: PPO on real data, without and with the bonus; pts, pts-be: PPO on imagined data, without and with it"""
    bonus: Literal["eig", "entropy", "variance", "error"] = "eig"
    """intrinsic reward r^i of be and pts-be; error needs the real next state, so pts-be refuses it"""
    dynamics: Literal["de", "gp", "dk"] = "de"
    """model of the dynamics p(f): deep ensemble, sparse variational GP, sparse variational deep kernel"""
    noise: Literal["homoskedastic", "heteroskedastic", "none"] = "heteroskedastic"
    """transition noise sigma(s): the same in all states, growing with speed and near the valley's bottom, or absent"""
    extrinsic: bool = False
    """be, pts-be: add the environment's reward of -1 a step to the bonus. Off, because values that start at 0 are
    optimistic under -1 a step: planning then explores without any bonus, and the bonus could not be credited.
    ppo and pts have no other reward and always use it"""
    total_timesteps: int = 1000
    """number of real steps T, one continuing run that is reset only at the goal"""
    track_measures: bool = False
    """fit the dynamics model and log bonus/* at every model update even where the method needs no model"""
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
    """record the real steps as videos in the directory of the run"""
    save_model: bool = False
    """save policy and dynamics model in the directory of the run"""
    # Algorithm 1
    warmup_steps: int = 64
    """steps with random actions before the first update, t_warm"""
    policy_interval: int = 10
    """real steps between two plannings, t_policy (pts, pts-be)"""
    model_interval: int = 64
    """real steps between two updates of the dynamics model, t_model"""
    rollouts: int = 10
    """imagined trajectories of a planning, K"""
    horizon: int = 100
    """steps of an imagined trajectory, J"""
    policy_updates: int = 20
    """gradient steps on the policy in an update, G"""
    model_updates: int = 100
    """gradient steps on the deep ensemble in an update"""
    eta: float = 0.1
    """weight of the bonus, eta: a constant, so that the bonus fades as the model learns"""
    eta_decay: float = 1.0
    """eta_t = eta * eta_decay ** (t / 1000)"""
    # dynamics model
    ensemble_size: int = 5
    """number of networks in the deep ensemble, M"""
    model_width: int = 64
    """hidden units in each of the two layers of a member, and of the deep kernel"""
    model_gain: float = 1.0
    """how wide the first layer of the ensemble is drawn"""
    model_lr: float = 1e-3
    """learning rate of the ensemble"""
    model_batch: int = 128
    """transitions per gradient step and member"""
    inducing_points: int = 64
    """inducing points of the GP and of the deep kernel"""
    gp_lr: float = 0.05
    """learning rate of the hyper-parameters (gp, dk)"""
    gp_updates: int = 10
    """gradient steps on the hyper-parameters in an update (gp, dk)"""
    # PPO
    rollout_steps: int = 64
    """real steps between two updates of the policy (ppo, be)"""
    policy_width: int = 32
    """hidden units in each of the two layers of actor and critic"""
    policy_lr: float = 2e-3
    """learning rate of actor and critic"""
    gamma: float = 0.99
    """discount factor"""
    gae_lambda: float = 0.98
    """lambda of the generalised advantage estimate"""
    minibatches: int = 2
    """mini-batches per epoch"""
    clip_coef: float = 0.2
    """clipping range of the probability ratio"""
    ent_coef: float = 0.01
    """weight of the entropy of the policy, c_2"""
    vf_coef: float = 0.5
    """weight of the value loss, c_1"""
    max_grad_norm: float = 0.5
    """largest norm of the gradient of the policy"""
    advantage_floor: float = 1e-8
    """added to the deviation that advantages are divided by"""


# ----------------------------------------------------------------------------------------------------- environment


class NoisyMountainCar(MountainCarEnv):
    """Mountain Car with Gaussian transition noise, s' = f(s, a) + sigma(s) * epsilon, without a time limit."""

    SIGMA = np.array([0.003, 0.0003])  # standard deviation of position and velocity
    LOW, HIGH = np.array([-1.2, -0.07]), np.array([0.6, 0.07])
    GOAL = 0.5

    def __init__(self, noise: str = "heteroskedastic", render_mode: str | None = None):
        super().__init__(render_mode=render_mode)
        self.noise = noise

    @staticmethod
    def dynamics(state: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Gymnasium's noiseless Mountain Car, f(s, a), for states (..., 2) and actions (...)."""
        position, velocity = state[..., 0], state[..., 1]
        velocity = np.clip(velocity + 0.001 * (action - 1) - 0.0025 * np.cos(3 * position), -0.07, 0.07)
        position = np.clip(position + velocity, -1.2, 0.6)
        velocity = np.where((position <= -1.2) & (velocity < 0), 0.0, velocity)
        return np.stack([position, velocity], -1)

    def sigma(self, state: np.ndarray) -> np.ndarray:
        """Standard deviation of the noise: (2,)."""
        if self.noise == "none":
            return np.zeros(2)
        if self.noise == "homoskedastic":
            return self.SIGMA
        position, velocity = state
        valley = math.exp(-0.5 * ((position + math.pi / 6) / 0.15) ** 2)  # the bottom lies at -pi/6
        return self.SIGMA * (0.5 + abs(velocity) / 0.07 + 1.5 * valley)

    def step(self, action: int):
        state = np.asarray(self.state, dtype=np.float64)
        noise = self.sigma(state) * self.np_random.standard_normal(2)
        self.state = np.clip(self.dynamics(state, action) + noise, self.LOW, self.HIGH)
        if self.render_mode == "human":
            self.render()
        terminated = bool(self.state[0] >= self.GOAL)
        return self.state.astype(np.float32), -1.0, terminated, False, {}


class CoverageGrid:
    """Share of the reachable cells of a grid over position and velocity that were visited."""

    BINS = np.array([20, 20])

    def __init__(self):
        self.visits = np.zeros(self.BINS, dtype=np.int64)
        self.reachable = np.zeros(self.BINS, dtype=bool)
        # Reachable: visited by 4000 noiseless cars. Each pushes along its velocity with its own probability, which
        # pumps energy in or (from the other half) takes it out, and otherwise drives at random.
        rng = np.random.default_rng(0)
        start = np.stack([rng.uniform(-0.6, -0.4, 4000), np.zeros(4000)], -1)  # (4000, 2)
        pump, sign = rng.random(4000), rng.choice([-1, 1], 4000)
        state = start
        for _ in range(300):
            along = 1 + sign * np.sign(state[:, 1])  # (4000,)
            action = np.where(rng.random(4000) < pump, along, rng.integers(0, 3, 4000))
            state = NoisyMountainCar.dynamics(state, action)
            self.reachable[tuple(self.cell(state).T)] = True
            state = np.where(state[:, :1] >= NoisyMountainCar.GOAL, start, state)
            sign = np.where(rng.random(4000) < 0.02, -sign, sign)

    def cell(self, state: np.ndarray) -> np.ndarray:
        """Cell of each state: (..., 2) -> (..., 2)."""
        unit = (state - NoisyMountainCar.LOW) / (NoisyMountainCar.HIGH - NoisyMountainCar.LOW)
        return np.clip((unit * self.BINS).astype(int), 0, self.BINS - 1)

    def centres(self) -> np.ndarray:
        """State in the middle of every cell: (position bins * velocity bins, 2)."""
        unit = np.stack(np.meshgrid(*[(np.arange(n) + 0.5) / n for n in self.BINS], indexing="ij"), -1).reshape(-1, 2)
        return NoisyMountainCar.LOW + unit * (NoisyMountainCar.HIGH - NoisyMountainCar.LOW)

    def visit(self, state: np.ndarray) -> None:
        self.visits[tuple(self.cell(state))] += 1

    def coverage(self) -> float:
        return float((self.visits[self.reachable] > 0).mean())


# -------------------------------------------------------------------------------------------------- dynamics models
# A dynamics model maps x = [state, one-hot action] to a distribution of y = [state change, reward]. All of them offer
# fit(x, y, steps), predict(x) -> (mean, var), sample(mean, var) -> y, and the bonuses as functions of (mean, var).


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


class DeepEnsemble(nn.Module):
    """M probabilistic networks (Lakshminarayanan et al., 2017), trained and evaluated as one.

    The wider the first layer is drawn (gain), the more the members differ where there is no data.
    """

    MIN_LOG_VAR, MAX_LOG_VAR = -6.0, 2.0  # of the standardised targets

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        members: int = 5,
        width: int = 64,
        gain: float = 1.0,
        lr: float = 1e-3,
        batch_size: int = 128,
    ):
        super().__init__()
        self.members, self.lr, self.batch_size = members, lr, batch_size
        self.networks = BatchedMLP(members, (in_dim, width, width, 2 * out_dim), (gain, 1.0, 1.0))
        self.in_scale, self.out_scale = Standardizer(in_dim), Standardizer(out_dim)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr, fused=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the standardised targets: (M, N, in) -> 2 x (M, N, D)."""
        mean, raw = self.networks(x).chunk(2, -1)
        return mean, self.MIN_LOG_VAR + (self.MAX_LOG_VAR - self.MIN_LOG_VAR) * raw.sigmoid()

    def fit(self, x: Tensor, y: Tensor, steps: int) -> float:
        """Gradient steps on the Gaussian negative log-likelihood; every member draws its own mini-batches.

        The learning rate falls to 0 within every call: at a constant rate the members jitter and EIG cannot fade.
        """
        self.in_scale.fit(x)
        self.out_scale.fit(y)
        x, y = self.in_scale(x), self.out_scale(y)
        indices = torch.randint(len(x), (steps, self.members, self.batch_size), device=x.device)
        for step, index in enumerate(indices):
            self.optimizer.param_groups[0]["lr"] = self.lr * (1 - step / steps)
            mean, log_var = self(x[index])  # (M, B, D) each
            loss = (log_var + (y[index] - mean).square() * (-log_var).exp()).mean(1).sum()  # 2 NLL, summed over members
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item() / (2 * self.members)

    @torch.no_grad()
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and noise variance of every member, in the units of the targets: (N, in) -> 2 x (M, N, D)."""
        mean, log_var = self(self.in_scale(x).expand(self.members, -1, -1))
        return self.out_scale.mean + self.out_scale.scale * mean, self.out_scale.scale.square() * log_var.exp()

    def sample(self, mean: Tensor, var: Tensor) -> Tensor:
        """One draw from the mixture of the members: 2 x (M, N, D) -> (N, D)."""
        rows = torch.arange(mean.shape[1], device=mean.device)
        member = torch.randint(self.members, rows.shape, device=mean.device)  # (N,)
        mean = mean[member, rows]  # (N, D)
        return mean + var[member, rows].sqrt() * torch.randn_like(mean)

    def eig(self, mean: Tensor, var: Tensor) -> Tensor:
        return mixture_eig(mean, var)

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


# ------------------------------------------------------------------------------------------------------- PPO policy


def gae(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """Generalised advantage estimate; tensors and result are (T, N)."""
    continues = 1 - terminated
    delta = rewards + gamma * continues * next_values - values
    decay = gamma * gae_lambda * continues
    advantages = torch.zeros_like(rewards)
    last = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        last = delta[t] + decay[t] * last
        advantages[t] = last
    return advantages


class PPO(nn.Module):
    """Actor and critic, and the clipped update of Schulman et al. (2017)."""

    def __init__(self, observation_space: gym.spaces.Box, action_space: gym.spaces.Discrete, args: Args):
        super().__init__()
        low, high = torch.as_tensor(observation_space.low), torch.as_tensor(observation_space.high)
        self.register_buffer("centre", (high + low) / 2)
        self.register_buffer("radius", (high - low) / 2)
        self.num_actions = int(action_space.n)
        sizes = (len(low), args.policy_width, args.policy_width, self.num_actions)
        self.networks = BatchedMLP(2, sizes, (3.0, 3.0, 0.0))  # the first policy is uniform, the first value 0
        self.optimizer = torch.optim.Adam(self.parameters(), lr=args.policy_lr, eps=1e-5, fused=True)
        self.args = args

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and value: (N, S) -> (N, A), (N,). Actor and critic are the two networks of the batch."""
        out = self.networks(((state - self.centre) / self.radius).expand(2, -1, -1))  # (2, N, A)
        return out[0], out[1, :, 0]

    @torch.no_grad()
    def act(self, state: Tensor) -> Tensor:
        """Sample actions with the Gumbel-max trick: (N, S) -> (N,)."""
        logits, _ = self(state)
        return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)

    def update(
        self, states: Tensor, actions: Tensor, rewards: Tensor, next_states: Tensor, terminated: Tensor
    ) -> dict[str, float]:
        """Clipped gradient steps on N trajectories of T steps: (T, N, S), (T, N), (T, N), (T, N, S), (T, N)."""
        args = self.args
        with torch.no_grad():
            logits, values = self(states.flatten(0, 1))  # (T * N, A), (T * N,)
            _, next_values = self(next_states.flatten(0, 1))
            values, next_values = values.view_as(rewards), next_values.view_as(rewards)  # (T, N) each
            advantages = gae(rewards, values, next_values, terminated, args.gamma, args.gae_lambda)
            returns = (advantages + values).flatten()  # (T * N,)
            states, actions, advantages = states.flatten(0, 1), actions.flatten()[:, None], advantages.flatten()
            old_log_prob = logits.log_softmax(-1).gather(1, actions).squeeze(1)  # (T * N,)
        batches = []
        while len(batches) < args.policy_updates:
            batches.extend(torch.randperm(len(states), device=states.device).chunk(args.minibatches))
        for batch in batches[: args.policy_updates]:
            logits, value = self(states[batch])  # (B, A), (B,)
            log_probs = logits.log_softmax(-1)  # (B, A)
            ratio = (log_probs.gather(1, actions[batch]).squeeze(1) - old_log_prob[batch]).exp()  # (B,)
            advantage = advantages[batch]
            advantage = (advantage - advantage.mean()) / (advantage.std() + args.advantage_floor)
            clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
            policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
            value_loss = 0.5 * (value - returns[batch]).square().mean()
            entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
            loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters(), args.max_grad_norm)
            self.optimizer.step()
        return {"policy_loss": policy_loss.item(), "value_loss": value_loss.item(), "entropy": entropy.item()}


# ------------------------------------------------------------------------------------------------------ imagination


@torch.no_grad()
def imagine(
    policy: PPO, dynamics: DeepEnsemble | SparseGP, start: Tensor, rollouts: int, horizon: int, goal: float
) -> tuple[list[Tensor], Tensor, Tensor]:
    """K trajectories of J steps from start, (S,) or (K, S), inside the model: no real environment takes part.

    A trajectory that gets to a position where a real run has ended (goal; infinite until then) ends too, and another
    one begins at the start. Returns states (J, K, S), actions, rewards, next states, terminations, and the mean and
    variance that the model predicted, ([M,] J * K, D), from which the bonus is computed in one call.
    """
    low, high = policy.centre - policy.radius, policy.centre + policy.radius
    one_hot = torch.eye(policy.num_actions, device=start.device)
    state = start = start.expand(rollouts, -1)  # (K, S)
    steps, means, variances = [], [], []
    for _ in range(horizon):
        action = policy.act(state)  # (K,)
        mean, var = dynamics.predict(torch.cat([state, one_hot[action]], -1))  # ([M,] K, D) each
        y = dynamics.sample(mean, var)  # (K, D)
        next_state = torch.clamp(state + y[:, :-1], low, high)  # (K, S), kept inside the box of valid states
        terminated = next_state[:, :1] >= goal  # (K, 1)
        steps.append((state, action, y[:, -1], next_state, terminated[:, 0].float()))
        means.append(mean)
        variances.append(var)
        state = torch.where(terminated, start, next_state)
    trajectories = [torch.stack(column) for column in zip(*steps, strict=True)]  # (J, K, ...) each
    return trajectories, torch.cat(means, -2), torch.cat(variances, -2)


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
        if type(value) is int and value < 1 and name not in ("seed", "warmup_steps"):
            refuse(f"{flag} is {value}, it must be at least 1")
        if type(value) in (int, float) and not 0 <= value < math.inf:
            refuse(f"{flag} is {value}, it must be a number from 0 up")
    rows = args.rollouts * args.horizon if args.method in ("pts", "pts-be") else args.rollout_steps
    if rows % args.minibatches or rows < 2 * args.minibatches:
        what = "--rollouts times --horizon" if args.method in ("pts", "pts-be") else "--rollout-steps"
        refuse(
            f"{what} is {rows}, it must be a multiple of --minibatches ({args.minibatches}), and at least twice that"
        )
    if args.cuda and not torch.cuda.is_available():
        refuse("--cuda was asked for, but PyTorch sees no GPU: leave it out to run on the CPU")
    for flag, packages in {"track": ("wandb",), "capture_video": ("pygame", "moviepy")}.items():
        missing = [package for package in packages if find_spec(package) is None]
        if getattr(args, flag) and missing:
            refuse(f"--{flag.replace('_', '-')} needs packages that are not installed: pip install {' '.join(missing)}")


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


def as_image(grid: np.ndarray) -> np.ndarray:
    """Values over (position, velocity) as grey levels, 12 pixels a cell, velocity upwards."""
    return np.kron(grid.T[::-1] / max(float(grid.max()), 1e-12), np.ones((12, 12)))


def main(args: Args) -> dict:
    check(args)
    start_time = time.time()
    env_name = f"NoisyMountainCar-{args.noise}"
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
    env = NoisyMountainCar(args.noise, render_mode="rgb_array" if args.capture_video else None)
    if args.capture_video:
        env = gym.wrappers.RecordVideo(env, str(run_dir / "videos"), episode_trigger=lambda _: True)
    env.action_space.seed(args.seed)
    grid = CoverageGrid()
    state_dim, num_actions = env.observation_space.shape[0], int(env.action_space.n)
    in_dim, out_dim = state_dim + num_actions, state_dim + 1
    one_hot = torch.eye(num_actions, device=device)

    # Alg. 1, line 1: policy, buffer, dynamics model
    with device:  # whatever is made here lives on it
        policy = PPO(env.observation_space, env.action_space, args)
        if args.dynamics == "de":
            size = args.ensemble_size, args.model_width
            dynamics = DeepEnsemble(in_dim, out_dim, *size, args.model_gain, args.model_lr, args.model_batch)
        else:
            features = ResNetFeatures(in_dim, args.model_width) if args.dynamics == "dk" else None
            dynamics = SparseGP(in_dim, out_dim, args.inducing_points, args.gp_lr, features)
    model_updates = args.model_updates if args.dynamics == "de" else args.gp_updates
    xs = torch.zeros(args.total_timesteps, in_dim, device=device)  # [state, one-hot action]
    ys = torch.zeros(args.total_timesteps, out_dim, device=device)  # [state change, reward]
    real_actions = torch.zeros(args.total_timesteps, dtype=torch.long, device=device)
    terminations = torch.zeros(args.total_timesteps, device=device)

    plans = args.method in ("pts", "pts-be")
    reacts = args.method in ("ppo", "be")
    with_bonus = args.method in ("be", "pts-be")
    with_extrinsic = args.extrinsic or not with_bonus
    needs_model = plans or args.method == "be" or args.track_measures
    fitted_steps = 0  # transitions that the dynamics model has seen
    last_policy_step = 0
    goal = math.inf  # lowest position at which a run has ended, unknown before the first time
    solved_step, episode_start, total_return, failure = None, 0, 0.0, None

    state, _ = env.reset(seed=args.seed)
    grid.visit(state)
    next_print = time.time() + 0.5
    try:
        for step in range(1, args.total_timesteps + 1):  # Alg. 1, line 2
            # Alg. 1, line 3: act
            state_tensor = torch.as_tensor(state, device=device)
            at_random = args.method == "random" or step <= args.warmup_steps
            action = int(env.action_space.sample()) if at_random else int(policy.act(state_tensor[None]))
            next_state, reward, terminated, _, _ = env.step(action)  # never truncated
            require_finite({"the position": next_state[0], "the velocity": next_state[1]}, step)

            # Alg. 1, line 4: store the transition
            xs[step - 1] = torch.cat([state_tensor, one_hot[action]])
            ys[step - 1, :-1] = torch.as_tensor(next_state, device=device) - state_tensor
            ys[step - 1, -1] = reward
            real_actions[step - 1] = action
            terminations[step - 1] = float(terminated)
            total_return += reward
            grid.visit(next_state)
            state = next_state
            if terminated:
                solved_step = solved_step or step
                goal = min(goal, float(next_state[0]))
                writer.add_scalar("charts/episodic_length", step - episode_start, step)
                writer.add_scalar("charts/episodic_return", float(ys[episode_start:step, -1].sum()), step)
                episode_start = step
                state, _ = env.reset()
                grid.visit(state)

            if step % 10 == 0:
                writer.add_scalar("charts/coverage", grid.coverage(), step)
            if time.time() > next_print:
                next_print = time.time() + 0.2
                sps = step / (time.time() - start_time)
                left = (args.total_timesteps - step) / sps
                status = f"step {step}/{args.total_timesteps}  coverage {grid.coverage():.2f}  {sps:.0f} steps/s"
                print(f"\r{status}  {left:.0f} s left  ", end="", flush=True)

            if step < args.warmup_steps:  # Alg. 1, line 5
                continue
            eta = args.eta * args.eta_decay ** (step / 1000)

            # Alg. 1, lines 14 to 18. The model comes first, so that the first planning has one.
            if needs_model and step % args.model_interval == 0:
                if fitted_steps:
                    new_x, new_y = xs[fitted_steps:step], ys[fitted_steps:step]
                    mean, var = dynamics.predict(new_x)
                    writer.add_scalar("bonus/eig", dynamics.eig(mean, var).mean(), step)
                    writer.add_scalar("bonus/entropy", dynamics.entropy(mean, var).mean(), step)
                    writer.add_scalar("bonus/error", dynamics.error(mean, var, new_y).mean(), step)
                losses = {"dynamics_loss": dynamics.fit(xs[:step], ys[:step], model_updates)}  # Alg. 1, line 16
                fitted_steps = step
                require_finite(losses, step)
                writer.add_scalar("losses/dynamics_loss", losses["dynamics_loss"], step)
                writer.add_scalar("charts/SPS", step / (time.time() - start_time), step)

            if plans and fitted_steps and step % args.policy_interval == 0:  # Alg. 1, line 6
                # Alg. 1, lines 7 and 8: K imagined trajectories of J steps from the current state
                start = torch.as_tensor(state, device=device)  # (S,)
                trajectories, mean, var = imagine(policy, dynamics, start, args.rollouts, args.horizon, goal)
                states, actions, rewards, next_states, ended = trajectories
                # Alg. 1, line 9: r = r^e + eta r^i
                rewards = rewards if with_extrinsic else torch.zeros_like(rewards)  # (J, K)
                if with_bonus:
                    rewards = rewards + eta * getattr(dynamics, args.bonus)(mean, var).view_as(rewards)
            elif reacts and step - last_policy_step >= args.rollout_steps and (fitted_steps or not needs_model):
                # the same on the real transitions since the last update, as one trajectory
                new = slice(last_policy_step, step)
                states, actions, ended = xs[new, None, :state_dim], real_actions[new, None], terminations[new, None]
                next_states = states + ys[new, None, :-1]  # (T, 1, S)
                rewards = ys[new, None, -1] if with_extrinsic else torch.zeros_like(ended)  # (T, 1)
                if with_bonus:
                    mean, var = dynamics.predict(xs[new])
                    outcome = (ys[new],) if args.bonus == "error" else ()
                    rewards = rewards + eta * getattr(dynamics, args.bonus)(mean, var, *outcome)[:, None]
                last_policy_step = step
            else:
                continue
            losses = policy.update(states, actions, rewards, next_states, ended)  # Alg. 1, lines 10 to 12
            require_finite(losses, step)
            for name, value in losses.items():
                writer.add_scalar(f"losses/{name}", value, step)
    except FloatingPointError as error:
        failure = str(error)

    wall_time = time.time() - start_time
    writer.add_image("visits", as_image(np.minimum(grid.visits, 10)), step, dataformats="HW")
    if fitted_steps:
        centres = torch.as_tensor(grid.centres(), dtype=torch.float32, device=device)  # (cells, S)
        x = torch.cat([centres, one_hot[1].expand(len(centres), -1)], -1)  # no push
        eig = dynamics.eig(*dynamics.predict(x)).view(*grid.BINS)
        writer.add_image("eig_map", as_image(eig.cpu().numpy()), step, dataformats="HW")
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
        "dynamics": args.dynamics if needs_model else None,
        "env": env_name,
        "seed": args.seed,
        "total_timesteps": args.total_timesteps,
        "steps": step,
        "solved": solved_step is not None,
        "solved_step": solved_step,
        "coverage": grid.coverage(),
        "episodic_return": total_return,
        "wall_time_s": wall_time,
        "sps": step / wall_time,
        "versions": {name: metadata.version(name) for name in ("torch", "gymnasium", "mujoco")},
        "git_commit": git_commit(),
    }
    write_json(run_dir / "result.json", result)
    solved = f"goal reached at step {solved_step}" if solved_step else "goal not reached"
    print(f"\r{run_name}: {solved}, coverage {grid.coverage():.2f}, {wall_time:.1f} s{'':20}")
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(tyro.cli(Args))
