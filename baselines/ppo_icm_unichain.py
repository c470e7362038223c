"""PPO with the Intrinsic Curiosity Module (ICM, Pathak et al., 2017) on the unichain: a reactive comparator.

    python baselines/ppo_icm_unichain.py --seed 1
    python baselines/ppo_icm_unichain.py --seed 1 --length 100 --total-timesteps 400

The bonus is paid for real transitions after they happened; nothing is imagined. The file reads top to bottom:
arguments, environment, curiosity module, policy, main loop.
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
    """add the environment's reward to the bonus: as the bonus fades, the agent stays at the goal"""
    total_timesteps: int = 200
    """number of real steps T, one continuing run (400 for --length 100)"""
    # the run
    exp_name: str = "ppo_icm_unichain"
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
    """save policy and curiosity module in the directory of the run"""
    # curiosity module
    eta: float = 1000.0
    """weight of the bonus, eta: the reward is r^e + eta / 2 ||phi_hat(s') - phi(s')||^2"""
    beta: float = 0.2
    """weight of the forward model's loss against the inverse model's, beta"""
    features: int = 32
    """dimensions of the features phi(s)"""
    model_width: int = 64
    """hidden units of the encoder, the inverse and the forward model"""
    state_scale: float = 20.0
    """half-width of the range that the encoder's input covers"""
    model_lr: float = 3e-3
    """learning rate of the module"""
    model_updates: int = 20
    """gradient steps on the module per update, on the transitions since the last one"""
    # PPO
    rollout_steps: int = 16
    """real steps between two updates"""
    policy_updates: int = 10
    """gradient steps on the policy in an update, G"""
    policy_width: int = 64
    """hidden units in each of the two layers of actor and critic"""
    policy_lr: float = 1e-3
    """learning rate of actor and critic"""
    gamma: float = 0.95
    """discount factor"""
    gae_lambda: float = 0.95
    """lambda of the generalised advantage estimate"""
    minibatches: int = 1
    """mini-batches per epoch"""
    clip_coef: float = 0.5
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


# ----------------------------------------------------------------------------------------------------- curiosity module


class ICM(nn.Module):
    """Intrinsic Curiosity Module (Pathak et al., 2017): the error of a forward model in a space of features phi(s).

    An inverse model, which reads the action off phi(s) and phi(s'), shapes the features: what the agent's actions do
    not change has no place in them.
    """

    def __init__(self, observation_space: gym.spaces.Box, action_space: gym.spaces.Discrete, args: Args):
        super().__init__()
        low, high = torch.as_tensor(observation_space.low), torch.as_tensor(observation_space.high)
        self.register_buffer("centre", (high + low) / 2)
        self.register_buffer("radius", (high - low) / 2)
        self.num_actions = int(action_space.n)
        width, features = args.model_width, args.features
        self.encoder = nn.Sequential(nn.Linear(len(low), width), nn.SiLU(), nn.Linear(width, features))
        self.inverse_model = nn.Sequential(
            nn.Linear(2 * features, width), nn.SiLU(), nn.Linear(width, self.num_actions)
        )
        self.forward_model = nn.Sequential(
            nn.Linear(features + self.num_actions, width), nn.SiLU(), nn.Linear(width, features)
        )
        self.optimizer = torch.optim.Adam(self.parameters(), lr=args.model_lr, fused=True)
        self.args = args

    def phi(self, state: Tensor) -> Tensor:
        """Features: (N, S) -> (N, F)."""
        return self.encoder(self.args.state_scale * (state - self.centre) / self.radius)

    def forward_error(self, phi: Tensor, actions: Tensor, next_phi: Tensor) -> Tensor:
        """0.5 ||phi_hat(s') - phi(s')||^2: (N, F), (N,), (N, F) -> (N,)."""
        one_hot = F.one_hot(actions, self.num_actions).to(phi.dtype)  # (N, A)
        predicted = self.forward_model(torch.cat([phi, one_hot], -1))  # (N, F)
        return 0.5 * (predicted - next_phi).square().sum(-1)

    @torch.no_grad()
    def bonus(self, states: Tensor, actions: Tensor, next_states: Tensor) -> Tensor:
        """Curiosity about each transition: (N, S), (N,), (N, S) -> (N,)."""
        return self.forward_error(self.phi(states), actions, self.phi(next_states))

    def fit(self, states: Tensor, actions: Tensor, next_states: Tensor) -> dict[str, float]:
        """Gradient steps on (1 - beta) L_inverse + beta L_forward, on all transitions given: (N, S), (N,), (N, S)."""
        args = self.args
        for _ in range(args.model_updates):
            phi, next_phi = self.phi(states), self.phi(next_states)  # (N, F) each
            inverse_loss = F.cross_entropy(self.inverse_model(torch.cat([phi, next_phi], -1)), actions)
            forward_loss = self.forward_error(phi, actions, next_phi).mean()
            loss = (1 - args.beta) * inverse_loss + args.beta * forward_loss
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return {"inverse_loss": inverse_loss.item(), "forward_loss": forward_loss.item()}


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
        curiosity = ICM(env.observation_space, env.action_space, args)
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
            bonus = curiosity.bonus(new_states, actions[new], next_states)  # (T,)
            total = (rewards[new] if args.extrinsic else 0) + args.eta * bonus  # (T,), r = r^e + eta r^i
            columns = new_states, actions[new], total, next_states, torch.zeros_like(total)  # nothing ends an episode
            losses = policy.update(*(column[:, None] for column in columns))  # one trajectory, (T, 1, ...)
            losses |= curiosity.fit(new_states, actions[new], next_states)
            require_finite(losses, step)
            for name, value in losses.items():
                writer.add_scalar(f"losses/{name}", value, step)
            writer.add_scalar("bonus/icm", bonus.mean(), step)
            writer.add_scalar("charts/SPS", step / (time.time() - start_time), step)
    except FloatingPointError as error:
        failure = str(error)

    wall_time = time.time() - start_time
    coverage = float((visits > 0).mean())
    writer.close()
    env.close()
    if args.save_model or failure:
        torch.save({"policy": policy.state_dict(), "curiosity": curiosity.state_dict()}, run_dir / "model.pt")
    if failure:
        print(f"\nerror: {failure}; what was learned until then is in {run_dir / 'model.pt'}", file=sys.stderr)
        raise SystemExit(1)

    result = {
        "script": args.exp_name,
        "method": "icm",
        "bonus": "icm",
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
