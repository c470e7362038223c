"""PTS-BE with PPO on the unichain: planning to explore with the expected information gain (EIG).

    python ptsbe_ppo_unichain.py --dynamics gp --seed 1
    python ptsbe_ppo_unichain.py --dynamics gp --seed 1 --length 100 --total-timesteps 400

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
from typing import ClassVar, Literal

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from gp_models import SVGP, ResNetFeatures, Standardizer, inverse_softplus


@dataclass
class Args:
    # the experiment
    method: Literal["random", "ppo", "be", "pts", "pts-be"] = "pts-be"
    """ppo, be: PPO on real data, without and with the bonus; pts, pts-be: PPO on imagined data, without and with it"""
    bonus: Literal["eig", "entropy", "variance", "error"] = "eig"
    """intrinsic reward r^i of be and pts-be; error needs the real next state, so pts-be refuses it"""
    dynamics: Literal["de", "gp", "dk"] = "de"
    """model of the dynamics p(f): deep ensemble, sparse variational GP, sparse variational deep kernel"""
    length: int = 50
    """number of states of the chain, L"""
    noise: float = 0.0
    """probability that a random action takes the place of the chosen one"""
    extrinsic: bool = True
    """be, pts-be: add the reward of the environment to the bonus: as the bonus fades, the agent stays at the goal"""
    total_timesteps: int = 200
    """number of real steps T, one run without resets (400 for --length 100)"""
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
    warmup_steps: int = 10
    """steps with random actions before the first update, t_warm"""
    policy_interval: int | None = None
    """real steps between two plannings, t_policy (pts, pts-be); default 5 (de), 10 (gp, dk)"""
    model_interval: int | None = None
    """real steps between two updates of the dynamics model, t_model; default 5 (de), 10 (gp, dk)"""
    rollouts: int = 32
    """imagined trajectories of a planning, K"""
    horizon: int = 30
    """steps of an imagined trajectory, J"""
    replayed_starts: float = 0.5
    """share of the imagined trajectories that start in states visited before; the others start in the present one"""
    policy_updates: int = 20
    """gradient steps on the policy in an update, G"""
    model_updates: int = 30
    """gradient steps on the deep ensemble in an update"""
    eta: float | None = None
    """weight of the bonus, eta: a constant, so that the bonus fades as the model learns; default 1 (de), 0.3 (gp, dk),
    because EIG cannot exceed log M nats for an ensemble and is larger than that for a GP"""
    eta_decay: float = 1.0
    """eta_t = eta * eta_decay ** (t / 1000)"""
    # dynamics model
    ensemble_size: int = 5
    """number of networks in the deep ensemble, M"""
    model_width: int = 32
    """hidden units in each of the two layers of a member, and of the deep kernel"""
    model_gain: float = 20.0
    """how wide the first layer of the ensemble is drawn"""
    model_lr: float = 3e-3
    """learning rate of the ensemble"""
    model_batch: int = 64
    """transitions per gradient step and member"""
    inducing_points: int = 48
    """inducing points of the GP and of the deep kernel"""
    gp_lr: float = 0.003
    """learning rate of the hyper-parameters (gp, dk)"""
    gp_updates: int = 2
    """gradient steps on the hyper-parameters in an update (gp, dk)"""
    # PPO
    rollout_steps: int = 32
    """real steps between two updates of the policy (ppo, be)"""
    policy_width: int = 64
    """hidden units in each of the two layers of actor and critic"""
    policy_lr: float = 2e-3
    """learning rate of actor and critic"""
    gamma: float = 0.95
    """discount factor"""
    gae_lambda: float = 1.0
    """lambda of the generalised advantage estimate"""
    minibatches: int = 4
    """mini-batches per epoch"""
    clip_coef: float = 0.5
    """clipping range of the probability ratio"""
    ent_coef: float = 0.02
    """weight of the entropy of the policy, c_2"""
    vf_coef: float = 0.5
    """weight of the value loss, c_1"""
    max_grad_norm: float = 0.5
    """largest norm of the gradient of the policy"""
    advantage_floor: float = 0.1
    """added to the deviation that advantages are divided by: where all is known, the policy's entropy decides"""


# ----------------------------------------------------------------------------------------------------- environment


class Unichain(gym.Env):
    """States 0 to L - 1 in a row, seen as s / (L - 1); start in 1; actions left, stay, right; walls at both ends.

    The state arrived in pays 0.001 if it is the first and 1 if it is the last; nothing ends an episode. With
    probability noise, a random action takes the place of the chosen one.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, length: int = 50, noise: float = 0.0, render_mode: str | None = None):
        self.length, self.noise, self.render_mode = length, noise, render_mode
        self.observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self.index = 1

    def state(self) -> np.ndarray:
        return np.array([self.index / (self.length - 1)], dtype=np.float32)

    def reset(self, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.index = 1
        return self.state(), {}

    def step(self, action: int):
        if self.noise and self.np_random.random() < self.noise:
            action = self.np_random.integers(3)
        self.index = min(max(self.index + int(action) - 1, 0), self.length - 1)
        reward = {0: 0.001, self.length - 1: 1.0}.get(self.index, 0.0)
        return self.state(), reward, False, False, {}

    def render(self) -> np.ndarray:
        image = np.full((16, 8 * self.length, 3), 230, dtype=np.uint8)
        image[:, 8 * self.index : 8 * self.index + 8] = (31, 78, 156)
        return image


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


class BoxScale(Standardizer):
    """Scales states by the box of valid ones, not by the data: a distance means the same however far the agent got.

    One-hot actions become 0 and ACTION_SIZE. The smaller that is beside the box's 2, the more a model takes what it saw
    an action do in one state to be what it does in all: an action rarely tried is then no novelty in every state.
    """

    ACTION_SIZE = 0.1

    def __init__(self, space: gym.spaces.Box, num_actions: int):
        super().__init__(len(space.low) + num_actions)
        low, high = torch.as_tensor(space.low), torch.as_tensor(space.high)
        self.mean[: len(low)] = (low + high) / 2
        self.scale[: len(low)] = (high - low) / 2
        self.scale[len(low) :] = 1 / self.ACTION_SIZE

    def fit(self, x: Tensor) -> None:
        pass


class WarmupScale(Standardizer):
    """Keeps the scale of the first data: noise and EIG mean the same throughout, also once the agent stays in place."""

    fitted = False

    def fit(self, x: Tensor) -> None:
        if not self.fitted:
            super().fit(x)
            self.fitted = True


class ActionEnsemble(DeepEnsemble):
    """Deep ensemble with a linear path from the action to the outputs, beside the networks.

    Along it, what an action does is learned once, for all states. Without it, an action rarely tried stays a novelty
    in every state, and the agent walks back for it.
    """

    MIN_LOG_VAR = -5.0
    EFFECT_SIZE = 10.0  # of the input of that path: Adam moves weights by lr a step, so the effect by 10 lr

    def __init__(self, in_dim: int, out_dim: int, num_actions: int, members: int, *settings: float):
        super().__init__(in_dim, out_dim, members, *settings)
        self.effects = nn.Parameter(torch.zeros(members, num_actions, 2 * out_dim))
        self.optimizer = torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the standardised targets: (M, N, in) -> 2 x (M, N, D)."""
        action = x[..., -self.effects.shape[1] :] * (self.EFFECT_SIZE / BoxScale.ACTION_SIZE)  # (M, N, A)
        mean, raw = torch.baddbmm(self.networks(x), action, self.effects).chunk(2, -1)
        return mean, self.MIN_LOG_VAR + (self.MAX_LOG_VAR - self.MIN_LOG_VAR) * raw.sigmoid()


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


class BoundedGP(SparseGP):
    """Sparse GP with bounds on its hyper-parameters.

    As long as all transitions look alike, the likelihood favours a function that never changes, which leaves no doubt
    about the states ahead; bounds on length-scales and output scales keep it. The least noise sets how far EIG,
    logarithmic in var / noise, tells the states ahead from an action not yet tried where the agent is.
    """

    MIN_LENGTHSCALE, MAX_LENGTHSCALE, MIN_OUTPUTSCALE, MIN_NOISE = 0.6, 1.0, 1.0, 0.01  # the chain is 2 long

    def __init__(self, in_dim: int, out_dim: int, num_inducing: int, lr: float, features: nn.Module | None = None):
        super().__init__(in_dim, out_dim, num_inducing, lr, features)
        self.min_noise = self.MIN_NOISE
        lengthscale = torch.full_like(self.kernel.lengthscale, self.MIN_LENGTHSCALE)
        with torch.no_grad():
            self.raw_noise.fill_(inverse_softplus(self.MIN_NOISE))  # as much again as the least
            self.kernel.raw_lengthscale.copy_(inverse_softplus(lengthscale))

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> None:
        kernel = self.kernel
        lengthscale = kernel.lengthscale.clamp(self.MIN_LENGTHSCALE, self.MAX_LENGTHSCALE)
        kernel.raw_lengthscale.copy_(inverse_softplus(lengthscale))
        kernel.raw_outputscale.copy_(inverse_softplus(kernel.outputscale.clamp_min(self.MIN_OUTPUTSCALE)))
        super().condition(x, y)


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


def main(args: Args) -> dict:
    check(args)
    if args.length < 3:
        refuse(f"--length is {args.length}, a chain needs at least 3 states")
    if args.noise > 1:
        refuse(f"--noise is {args.noise}, a probability is at most 1")
    if args.replayed_starts > 1:
        refuse(f"--replayed-starts is {args.replayed_starts}, a share is at most 1")
    start_time = time.time()
    env_name = f"Unichain-{args.length}" + (f"-noise{args.noise:g}" if args.noise else "")
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
    env = Unichain(args.length, args.noise, render_mode="rgb_array" if args.capture_video else None)
    if args.capture_video:
        env = gym.wrappers.RecordVideo(env, str(run_dir / "videos"), episode_trigger=lambda _: True)
    env.action_space.seed(args.seed)
    visits = np.zeros(args.length, dtype=np.int64)
    state_dim, num_actions = env.observation_space.shape[0], int(env.action_space.n)
    in_dim, out_dim = state_dim + num_actions, state_dim + 1
    one_hot = torch.eye(num_actions, device=device)

    # Alg. 1, line 1: policy, buffer, dynamics model
    with device:  # whatever is made here lives on it
        policy = PPO(env.observation_space, env.action_space, args)
        if args.dynamics == "de":
            settings = args.ensemble_size, args.model_width, args.model_gain, args.model_lr, args.model_batch
            dynamics = ActionEnsemble(in_dim, out_dim, num_actions, *settings)
        else:
            features = ResNetFeatures(in_dim, args.model_width) if args.dynamics == "dk" else None
            dynamics = BoundedGP(in_dim, out_dim, args.inducing_points, args.gp_lr, features)
        dynamics.in_scale = BoxScale(env.observation_space, num_actions).to(dynamics.in_scale.mean)
        dynamics.out_scale = WarmupScale(out_dim).to(dynamics.out_scale.mean)
    # A change of the reward that was never seen has no scale, so rewards keep their own units.
    dynamics.out_scale.floor = torch.tensor([8.0] * state_dim + [math.inf], device=device)
    default_interval = 5 if args.dynamics == "de" else 10
    policy_interval = args.policy_interval or default_interval
    model_interval = args.model_interval or default_interval
    eta_start = args.eta if args.eta is not None else {"de": 1.0, "gp": 0.3, "dk": 0.3}[args.dynamics]
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
    solved_step, total_return, coverage, failure = None, 0.0, 0.0, None

    state, _ = env.reset(seed=args.seed)
    visits[env.unwrapped.index] += 1
    next_print = time.time() + 0.5
    try:
        for step in range(1, args.total_timesteps + 1):  # Alg. 1, line 2
            # Alg. 1, line 3: act
            state_tensor = torch.as_tensor(state, device=device)
            at_random = args.method == "random" or step <= args.warmup_steps
            action = int(env.action_space.sample()) if at_random else int(policy.act(state_tensor[None]))
            next_state, reward, terminated, _, _ = env.step(action)
            require_finite({"the state": next_state[0]}, step)

            # Alg. 1, line 4: store the transition
            xs[step - 1] = torch.cat([state_tensor, one_hot[action]])
            ys[step - 1, :-1] = torch.as_tensor(next_state, device=device) - state_tensor
            ys[step - 1, -1] = reward
            real_actions[step - 1] = action
            terminations[step - 1] = float(terminated)
            total_return += reward
            visits[env.unwrapped.index] += 1
            state = next_state
            if env.unwrapped.index == args.length - 1:
                solved_step = solved_step or step

            if step % 5 == 0:
                coverage = float((visits > 0).mean())
                writer.add_scalar("charts/coverage", coverage, step)
                writer.add_scalar("charts/cumulative_reward", total_return, step)
            if time.time() > next_print:
                next_print = time.time() + 0.2
                sps = step / (time.time() - start_time)
                left = (args.total_timesteps - step) / sps
                status = f"step {step}/{args.total_timesteps}  coverage {coverage:.2f}  {sps:.0f} steps/s"
                print(f"\r{status}  {left:.0f} s left  ", end="", flush=True)

            if step < args.warmup_steps:  # Alg. 1, line 5
                continue
            eta = eta_start * args.eta_decay ** (step / 1000)

            # Alg. 1, lines 14 to 18. The model comes first, so that the first planning has one.
            if needs_model and step % model_interval == 0:
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

            if plans and fitted_steps and step % policy_interval == 0:  # Alg. 1, line 6
                # Alg. 1, lines 7 and 8: K imagined trajectories of J steps from the present state. Here a share of them
                # starts in states visited before, so that the policy keeps what it learned of the way to the frontier.
                replayed = round(args.replayed_starts * args.rollouts)
                start = xs[torch.randint(step, (args.rollouts,), device=device), :state_dim]  # (K, S)
                start[replayed:] = torch.as_tensor(state, device=device)
                trajectories, mean, var = imagine(policy, dynamics, start, args.rollouts, args.horizon, math.inf)
                states, actions, rewards, next_states, ended = trajectories
                # Alg. 1, line 9: r = r^e + eta r^i
                # the mean of r^e instead of its sample: the same expectation, and no noise to drown the bonus
                rewards = mean[..., -1].reshape(-1, *rewards.shape).mean(0)  # (J, K)
                rewards = rewards if with_extrinsic else torch.zeros_like(rewards)
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
    coverage = float((visits > 0).mean())
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
        "coverage": coverage,
        "episodic_return": total_return,
        "wall_time_s": wall_time,
        "sps": step / wall_time,
        "versions": {name: metadata.version(name) for name in ("torch", "gymnasium", "mujoco")},
        "git_commit": git_commit(),
    }
    write_json(run_dir / "result.json", result)
    solved = f"goal reached at step {solved_step}" if solved_step else "goal not reached"
    print(f"\r{run_name}: {solved}, coverage {coverage:.2f}, reward {total_return:.2f}, {wall_time:.1f} s{'':20}")
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(tyro.cli(Args))
