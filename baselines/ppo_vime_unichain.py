"""PPO with Variational Information Maximizing Exploration (VIME, Houthooft et al., 2016) on the unichain.

    python baselines/ppo_vime_unichain.py --seed 1
    python baselines/ppo_vime_unichain.py --seed 1 --length 100 --total-timesteps 400

A reactive comparator: the information gain is paid for real transitions after they happened; nothing is imagined.
The file reads top to bottom: arguments, environment, Bayesian network, bonus, policy, main loop.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter


@dataclass
class Args:
    # the experiment
    length: int = 50
    """number of states of the chain, L"""
    noise: float = 0.0
    """probability that a random action takes the place of the chosen one"""
    extrinsic: bool = True
    """add the environment's reward to the bonus"""
    total_timesteps: int = 200
    """number of real steps T, one continuing run (400 for --length 100)"""
    # the run
    exp_name: str = "ppo_vime_unichain"
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
    """save policy and Bayesian network in the directory of the run"""
    # Bayesian network
    eta: float = 0.1
    """weight of the bonus, eta"""
    min_pool: int = 10
    """transitions in the replay pool before the network is first trained; until then there is no bonus"""
    median_batches: int = 10
    """gains are divided by the mean of the medians of this many last batches"""
    model_width: int = 32
    """hidden units of the network"""
    prior_sd: float = 0.5
    """standard deviation of the prior of each weight"""
    initial_sd: float = 0.1
    """standard deviation of each weight in the first posterior"""
    likelihood_sd: float = 0.1
    """standard deviation of the likelihood, of the standardised next state"""
    weight_samples: int = 10
    """samples of the weights per transition"""
    model_lr: float = 3e-3
    """learning rate of the network"""
    model_updates: int = 20
    """gradient steps on the network per update"""
    model_batch: int = 32
    """transitions per gradient step"""
    # PPO
    rollout_steps: int = 24
    """real steps between two updates"""
    policy_updates: int = 10
    """gradient steps on the policy in an update, G"""
    policy_width: int = 64
    """hidden units in each of the two layers of actor and critic"""
    policy_lr: float = 1e-3
    """learning rate of actor and critic"""
    gamma: float = 0.95
    """discount factor"""
    gae_lambda: float = 1.0
    """lambda of the generalised advantage estimate"""
    minibatches: int = 1
    """mini-batches per epoch"""
    clip_coef: float = 0.2
    """clipping range of the probability ratio"""
    ent_coef: float = 0.03
    """weight of the entropy of the policy, c_2"""
    vf_coef: float = 0.5
    """weight of the value loss, c_1"""
    max_grad_norm: float = 0.5
    """largest norm of the gradient of the policy"""
    advantage_floor: float = 1e-8
    """added to the deviation that advantages are divided by"""


# ---------------------------------------------------------------------------------------------------------- environment


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


# ----------------------------------------------------------------------------------------------------- Bayesian network


class BayesianNetwork(nn.Module):
    """Network with independent Gaussian weights: q(theta; phi), phi = (mu, rho), deviations log(1 + exp(rho)).

    One hidden layer, as in VIME. All weights lie in one vector, so that the KL and its Hessian are a line each.
    """

    def __init__(self, in_dim: int, out_dim: int, args: Args):
        super().__init__()
        width = args.model_width
        self.shapes = (in_dim, width), (width,), (width, out_dim), (out_dim,)
        self.sizes = [math.prod(shape) for shape in self.shapes]
        bounds = [1 / math.sqrt(fan_in) for fan_in in (in_dim, in_dim, width, width)]
        layers = [nn.init.uniform_(torch.empty(n), -bound, bound) for n, bound in zip(self.sizes, bounds, strict=True)]
        self.mu = nn.Parameter(torch.cat(layers))  # (P,)
        self.rho = nn.Parameter(torch.full_like(self.mu, math.log(math.expm1(args.initial_sd))))  # (P,)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=args.model_lr, fused=True)
        self.args = args

    def layers(self, vector: Tensor) -> list[Tensor]:
        """Weight and bias of both layers: (P,) -> (in, width), (width,), (width, D), (D,)."""
        return [part.view(shape) for part, shape in zip(vector.split(self.sizes), self.shapes, strict=True)]

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        """Standard normal noise for the units of both layers: (rows, samples, width), (rows, samples, D)."""
        samples, device = self.args.weight_samples, self.mu.device
        return tuple(torch.randn(rows, samples, units, device=device) for units in (self.sizes[1], self.sizes[3]))

    def nll(self, mu: Tensor, rho: Tensor, x: Tensor, y: Tensor, noise: tuple[Tensor, Tensor]) -> Tensor:
        """-E_q log p(y | x, theta) without its constant: (..., in), (..., D), (..., samples, units) -> (...).

        Local reparametrisation (Kingma et al., 2015): what enters a unit is a sum of Gaussian weights, hence Gaussian,
        and it is drawn instead of the weights.
        """
        w1, b1, w2, b2 = self.layers(mu)
        w1_var, b1_var, w2_var, b2_var = self.layers(F.softplus(rho).square())
        mean, var = x @ w1 + b1, x.square() @ w1_var + b1_var  # (..., width) each
        h = F.relu(mean.unsqueeze(-2) + var.sqrt().unsqueeze(-2) * noise[0])  # (..., samples, width)
        predicted = h @ w2 + b2 + (h.square() @ w2_var + b2_var).sqrt() * noise[1]  # (..., samples, D)
        return 0.5 * ((y.unsqueeze(-2) - predicted) / self.args.likelihood_sd).square().sum(-1).mean(-1)

    def fit(self, x: Tensor, y: Tensor) -> float:
        """Gradient steps on the negative ELBO per transition, on mini-batches: (N, in), (N, D)."""
        args = self.args
        for index in torch.randint(len(x), (args.model_updates, args.model_batch), device=x.device):
            kl = gaussian_kl(self.mu, F.softplus(self.rho), 0.0, args.prior_sd)
            nll = self.nll(self.mu, self.rho, x[index], y[index], self.draw(len(index)))  # (B,)
            loss = kl / len(x) + nll.mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


# ------------------------------------------------------------------------------------------------------------ bonus


STEP_SIZE = 0.01  # lambda; it cancels where gains are divided by the median gain


def gaussian_kl(mean: Tensor, sd: Tensor, mean0: Tensor | float, sd0: Tensor | float) -> Tensor:
    """KL(N(mean, sd^2) || N(mean0, sd0^2)), summed over the weights: (..., P) -> (...)."""
    ratio = (sd / sd0).square()
    return 0.5 * (ratio - 1 - ratio.log() + ((mean - mean0) / sd0).square()).sum(-1)


def kl_hessian(rho: Tensor) -> tuple[Tensor, Tensor]:
    """Diagonal Hessian of KL(q(phi) || q(phi_0)) at phi = phi_0, in mu and in rho: (P,) -> 2 x (P,)."""
    precision = F.softplus(rho).square().reciprocal()
    return precision, 2 * rho.sigmoid().square() * precision


def information_gain(network: BayesianNetwork, x: Tensor, y: Tensor) -> Tensor:
    """KL of the update of the posterior on each transition alone: (N, in), (N, D) -> (N,).

    One Newton step of size lambda on l(phi) = KL(q(phi) || q(phi_0)) - E_q log p(y | x, theta). At phi_0 the KL has
    gradient 0 and a diagonal Hessian H, so the step is -lambda H^-1 grad l, and to second order it is worth
    0.5 lambda^2 grad l^T H^-1 grad l (VIME, section 2.5).
    """
    gradients = torch.func.vmap(torch.func.grad(network.nll, argnums=(0, 1)), in_dims=(None, None, 0, 0, 0))
    mu, rho = network.mu.detach(), network.rho.detach()
    mu_grad, rho_grad = gradients(mu, rho, x, y, network.draw(len(x)))  # (N, P) each
    mu_hessian, rho_hessian = kl_hessian(rho)  # (P,) each
    return 0.5 * STEP_SIZE**2 * (mu_grad.square() / mu_hessian + rho_grad.square() / rho_hessian).sum(-1)


class VIME(nn.Module):
    """Information gain of real transitions about a Bayesian network of the dynamics, in units of recent gains."""

    def __init__(self, observation_space: gym.spaces.Box, action_space: gym.spaces.Discrete, args: Args):
        super().__init__()
        state_dim, self.num_actions = observation_space.shape[0], int(action_space.n)
        self.network = BayesianNetwork(state_dim + self.num_actions, state_dim, args)
        self.register_buffer("mean", torch.zeros(state_dim))
        self.register_buffer("scale", torch.zeros(state_dim))  # 0 until the first fit
        self.medians: deque[float] = deque(maxlen=args.median_batches)
        self.args = args

    def regression(self, states: Tensor, actions: Tensor, next_states: Tensor) -> tuple[Tensor, Tensor]:
        """Input and target of the network, states standardised by the pool: (N, S + A), (N, S)."""
        one_hot = F.one_hot(actions, self.num_actions).to(states.dtype)  # (N, A)
        return torch.cat([(states - self.mean) / self.scale, one_hot], -1), (next_states - self.mean) / self.scale

    def bonus(self, states: Tensor, actions: Tensor, next_states: Tensor) -> Tensor:
        """Gains over the mean of the medians of recent batches, this one included: (N, S), (N,), (N, S) -> (N,)."""
        if not self.scale.any():
            return torch.zeros_like(states[:, 0])
        gain = information_gain(self.network, *self.regression(states, actions, next_states))
        self.medians.append(gain.median().item())
        return gain * len(self.medians) / sum(self.medians)

    def fit(self, states: Tensor, actions: Tensor, next_states: Tensor) -> dict[str, float]:
        """Train the network on the replay pool, which is all transitions: (N, S), (N,), (N, S)."""
        if len(states) < self.args.min_pool:
            return {}
        self.mean, self.scale = states.mean(0), states.std(0).clamp(min=1e-6)
        return {"negative_elbo": self.network.fit(*self.regression(states, actions, next_states))}


# ----------------------------------------------------------------------------------------------------------- PPO policy


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


# ----------------------------------------------------------------------------------------------------------------- main


def refuse(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def check(args: Args) -> None:
    """Refuse bad input before anything is written."""
    for name, value in asdict(args).items():
        flag = f"--{name.replace('_', '-')}"
        if type(value) is int and value < 1 and name != "seed":
            refuse(f"{flag} is {value}, it must be at least 1")
        if type(value) in (int, float) and not 0 <= value < math.inf:
            refuse(f"{flag} is {value}, it must be a number from 0 up")
        if name.endswith("_sd") and value == 0:
            refuse(f"{flag} is 0, a standard deviation must be above 0")
    if args.length < 3:
        refuse(f"--length is {args.length}, a chain has at least 3 states")
    if args.noise > 1:
        refuse(f"--noise is {args.noise}, it is a probability: at most 1")
    if args.rollout_steps % args.minibatches or args.rollout_steps < 2 * args.minibatches:
        wanted = f"a multiple of --minibatches ({args.minibatches}) and at least twice as large"
        refuse(f"--rollout-steps is {args.rollout_steps}, it must be {wanted}")
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
    visits = np.zeros(args.length, dtype=np.int64)
    with device:  # whatever is made here lives on it
        policy = PPO(env.observation_space, env.action_space, args)
        vime = VIME(env.observation_space, env.action_space, args)
    states = torch.zeros(args.total_timesteps + 1, 1, device=device)  # s_0 to s_T
    actions = torch.zeros(args.total_timesteps, dtype=torch.long, device=device)
    rewards = torch.zeros(args.total_timesteps, device=device)
    solved_step, total_return, coverage, failure = None, 0.0, 0.0, None

    state, _ = env.reset(seed=args.seed)
    states[0] = torch.as_tensor(state, device=device)
    visits[env.unwrapped.index] += 1
    next_print = time.time() + 0.5
    try:
        for step in range(1, args.total_timesteps + 1):
            action = int(policy.act(states[step - 1 : step]))  # the first policy is uniform: no warm-up is needed
            next_state, reward, _, _, _ = env.step(action)
            require_finite({"the state": next_state[0]}, step)
            states[step] = torch.as_tensor(next_state, device=device)
            actions[step - 1], rewards[step - 1] = action, reward
            total_return += reward
            visits[env.unwrapped.index] += 1
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

            if step % args.rollout_steps:
                continue
            # the bonus of the newest transitions, in retrospect, by a model that has not been trained on them
            new = slice(step - args.rollout_steps, step)
            new_states, next_states = states[new], states[new.start + 1 : step + 1]  # (T, S) each
            bonus = vime.bonus(new_states, actions[new], next_states)  # (T,)
            total = (rewards[new] if args.extrinsic else 0) + args.eta * bonus  # (T,), r = r^e + eta r^i
            columns = new_states, actions[new], total, next_states, torch.zeros_like(total)  # nothing ends an episode
            losses = policy.update(*(column[:, None] for column in columns))  # one trajectory, (T, 1, ...)
            losses |= vime.fit(states[:step], actions[:step], states[1 : step + 1])
            require_finite(losses, step)
            for name, value in losses.items():
                writer.add_scalar(f"losses/{name}", value, step)
            writer.add_scalar("bonus/vime", bonus.mean(), step)
            writer.add_scalar("charts/SPS", step / (time.time() - start_time), step)
    except FloatingPointError as error:
        failure = str(error)

    wall_time = time.time() - start_time
    coverage = float((visits > 0).mean())
    writer.close()
    env.close()
    if args.save_model or failure:
        torch.save({"policy": policy.state_dict(), "vime": vime.state_dict()}, run_dir / "model.pt")
    if failure:
        print(f"\nerror: {failure}; what was learned until then is in {run_dir / 'model.pt'}", file=sys.stderr)
        raise SystemExit(1)

    result = {
        "script": args.exp_name,
        "method": "vime",
        "bonus": "vime",
        "dynamics": None,
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
