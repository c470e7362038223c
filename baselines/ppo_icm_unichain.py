"""PPO with the Intrinsic Curiosity Module (ICM, Pathak et al., 2017) on the unichain: a reactive comparator.

    python baselines/ppo_icm_unichain.py --seed 1
    python baselines/ppo_icm_unichain.py --length 100 --total-timesteps 400

The bonus is paid for real transitions after they happened; nothing is imagined. The file reads top to bottom:
arguments, environment, curiosity, solver, input and output, main.
"""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
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
from torch.optim import Adam
from torch.utils.tensorboard import SummaryWriter


@dataclass
class Args:
    method: ClassVar[str] = "icm"  # not a flag: the name in runs/ and in result.json
    # the experiment
    length: int = 50  # states of the chain, L
    swap: Literal["none", "half", "random"] = "none"  # left and right change places: beyond the middle, at random
    noise: float = 0.0  # probability that a random action takes the place of the chosen one
    extrinsic: bool = True  # add the reward of the environment to the bonus
    total_timesteps: int = 200  # steps of the one run, without resets, T (400 for --length 100)
    # the run
    seed: int = 1  # of environment, networks and all sampling
    run_name: str | None = None  # folder under runs/, instead of {env}__{method}__{seed}__{time}
    cuda: bool = False  # networks on the GPU; the CPU is faster at the default sizes
    track: bool = False  # log to Weights and Biases as well
    wandb_project_name: str = "ptsbe"  # project there
    wandb_entity: str | None = None  # user or team there
    capture_video: bool = False  # film the policy after the run
    save_model: bool = False  # save policy and curiosity module as model.pt
    # curiosity
    eta: float = 10.0  # weight of the bonus, eta
    beta: float = 0.2  # weight of the forward model's loss against the inverse model's, beta
    model_lr: float = 3e-3  # learning rate of the curiosity module
    model_updates: int = 20  # gradient steps on it in an update, on the transitions since the last one
    # PPO
    policy_interval: int = 8  # steps between two updates
    policy_updates: int = 20  # gradient steps on the policy in an update
    policy_lr: float = 1e-2  # learning rate of actor and critic
    gamma: float = 0.95  # discount factor
    gae_lambda: float = 0.95  # lambda of the generalised advantage estimate
    minibatches: int = 1  # batches that a pass over the trajectory is cut into
    clip_coef: float = 0.2  # clipping range of the probability ratio
    ent_coef: float = 0.003  # weight of the policy's doubt, c_2: how far it stays from being sure
    advantage_floor: float = 1e-8  # added to the advantages' deviation


RANGES = {  # least and largest value of flags; of all other numbers 1 and infinity
    "seed eta model_lr policy_lr clip_coef ent_coef advantage_floor": (0, math.inf),
    "noise beta gamma gae_lambda": (0, 1),
    "policy_interval": (2, math.inf),
    "length": (3, math.inf),
}

PICTURES, FILMED = 100, 100  # steps between two pictures for TensorBoard; steps of a video
POLICY_SCALE = 2.0  # length-scale of the features that the policy sees


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


class Visits:
    """Where the agent was on the chain, for measures and pictures: nothing of it reaches the agent."""

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

    def picture(self, title: str) -> np.ndarray:
        """The path against time, which goes downwards: (height, width, 3)."""
        path, image = np.concatenate(self.path), Image.new("RGB", (640, 730), "white")
        draw = ImageDraw.Draw(image)
        draw.font = ImageFont.load_default(22)
        points = np.stack([path / (self.length - 1), np.linspace(0, 1, len(path))], -1)  # (n, 2), in [0, 1]
        draw.line([tuple(point) for point in (20, 80) + points * (600, 590)], (31, 78, 156), width=3)
        labels = "step 0", f"step {len(path) - 1}"
        draw.rectangle([20, 80, 620, 670], outline="black")
        for place, text, anchor in (((20, 14), title, "la"), ((24, 84), labels[0], "la"), ((24, 666), labels[1], "ld")):
            draw.text(place, text, "black", anchor=anchor)
        draw.text((20, 690), "state 0", "black")
        draw.text((620, 690), f"state {self.length - 1}", "black", anchor="ra")
        return np.asarray(image)


# ------------------------------------------------------------------------------------------------------- curiosity


class ICM(nn.Module):
    """Intrinsic Curiosity Module (Pathak et al., 2017): the error of a forward model in a space of features phi(s).

    An inverse model, which reads the action off phi(s) and phi(s'), shapes the features: what the agent's actions do
    not change has no place in them.
    """

    FEATURES, WIDTH = 32, 64  # dimensions of phi(s); hidden units of each of the three networks
    STATE_SCALE = 20.0  # the encoder sees states from -20 to 20: neighbours on the chain are far enough apart to tell

    def __init__(self, state_dim: int, num_actions: int, args: Args):
        super().__init__()
        self.args, self.num_actions = args, num_actions

        def network(inputs: int, outputs: int) -> nn.Module:
            return nn.Sequential(nn.Linear(inputs, self.WIDTH), nn.SiLU(), nn.Linear(self.WIDTH, outputs))

        self.encoder = network(state_dim, self.FEATURES)
        self.inverse_model = network(2 * self.FEATURES, num_actions)
        self.forward_model = network(self.FEATURES + num_actions, self.FEATURES)
        self.optimizer = Adam(self.parameters(), args.model_lr, fused=True)

    def phi(self, states: Tensor) -> Tensor:
        """Features: (N, S) -> (N, F)."""
        return self.encoder(self.STATE_SCALE * states)

    def forward_error(self, phi: Tensor, actions: Tensor, next_phi: Tensor) -> Tensor:
        """0.5 ||phi_hat(s') - phi(s')||^2: (N, F), (N,), (N, F) -> (N,)."""
        one_hot = F.one_hot(actions, self.num_actions).to(phi.dtype)  # (N, A)
        predicted = self.forward_model(torch.cat([phi, one_hot], -1))  # (N, F)
        return 0.5 * (predicted - next_phi).square().sum(-1)

    @torch.no_grad()
    def bonus(self, states: Tensor, actions: Tensor, afters: Tensor) -> Tensor:
        """Curiosity about each transition: (N, S), (N,), (N, S) -> (N,)."""
        return self.forward_error(self.phi(states), actions, self.phi(afters))

    def fit(self, states: Tensor, actions: Tensor, afters: Tensor) -> dict[str, Tensor]:
        """Gradient steps on (1 - beta) L_inverse + beta L_forward, on all transitions given: (N, S), (N,), (N, S)."""
        beta = self.args.beta
        for _ in range(self.args.model_updates):
            phi, next_phi = self.phi(states), self.phi(afters)  # (N, F) each
            inverse_loss = F.cross_entropy(self.inverse_model(torch.cat([phi, next_phi], -1)), actions)
            forward_loss = self.forward_error(phi, actions, next_phi).mean()
            self.optimizer.zero_grad()
            ((1 - beta) * inverse_loss + beta * forward_loss).backward()
            self.optimizer.step()
        return {"inverse": inverse_loss, "forward": forward_loss}


# ---------------------------------------------------------------------------------------------------------- solver


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


# ------------------------------------------------------------------------------------------------ input and output


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


def show_path(run: Run, step: int) -> None:
    """Where the agent was: as a picture for TensorBoard and as summary.png."""
    picture = run.visits.picture(f"{run.visits.name}, {run.label}, seed {run.args.seed}: {step} steps")
    run.writer.add_image("visits", picture, step, dataformats="HWC")
    Image.fromarray(picture).save(run.folder / "summary.png")
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


# ------------------------------------------------------------------------------------------------------------ main


def main(args: Args) -> dict:
    check(args)
    if args.cuda:
        torch.set_default_device("cuda")  # of every tensor that is made from here on
    torch.manual_seed(args.seed)
    env, visits = make_env(args)
    state_dim, num_actions = env.observation_space.shape[0], int(env.action_space.n)
    policy, icm = PPO(state_dim, num_actions, args), ICM(state_dim, num_actions, args)
    states = torch.zeros(args.total_timesteps + 1, state_dim)  # s_0 to s_T
    actions, rewards = torch.zeros(args.total_timesteps, dtype=torch.long), torch.zeros(args.total_timesteps)
    step = 0

    states[0] = torch.as_tensor(env.reset(seed=args.seed)[0])
    visits.add(states[:1].cpu().numpy(), step)
    with Run(args, visits, policy=policy, dynamics=icm) as run:
        while step < args.total_timesteps and not run.stopped:
            action = int(policy.act(states[step : step + 1]))  # the first policy is uniform: there is no warm-up
            after, reward, *_ = env.step(action)  # nothing ends an episode
            if not np.isfinite(after).all():
                raise FloatingPointError(f"the state after step {step} is not finite")
            states[step + 1], actions[step], rewards[step] = torch.as_tensor(after), action, reward
            step += 1
            visits.add(after[None], step)
            run.progress(step)
            run.log(step, "charts", {"cumulative_reward": rewards[:step].sum()})
            if step % PICTURES == 0:
                attempt(show_path, run, step)

            if step % args.policy_interval:
                continue
            # the bonus of the steps since the last update, by a module that has not been trained on them
            first = step - args.policy_interval
            new = states[first:step], actions[first:step], states[first + 1 : step + 1]  # (N, S), (N,), (N, S)
            bonus = icm.bonus(*new)  # (N,)
            run.log(step, "bonus", {"icm": bonus})
            total = args.extrinsic * rewards[first:step] + args.eta * bonus  # r = r^e + eta r^i
            trajectory = *new[:2], total, new[2], torch.ones(len(total))  # the last: how surely it goes on
            for batch in policy.batches(*(column[:, None] for column in trajectory)):  # (N, 1, ...)
                losses = policy.update(*batch)
            run.log(step, "losses", losses | icm.fit(*new))

    tasks = [(show_path, run, step)]
    tasks += [(film, policy, args, run.folder / "videos")] if args.capture_video else []
    return run.finish(step, rewards[:step].sum().item(), tasks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(tyro.cli(Args, description=__doc__))
