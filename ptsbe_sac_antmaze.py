"""PTS-BE with SAC in ant mazes: planning to explore with the expected information gain (EIG).

    python ptsbe_sac_antmaze.py --maze small-open --seed 1

The file reads top to bottom: arguments, environment, dynamics models, bonuses, solver, imagination, input and output,
and in `main` Algorithm 1 of the paper (Caron, Hicks and Mavroudis, TMLR 2025) with its line numbers.
"""

import json
import math
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import gymnasium as gym
import mujoco
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from gp_models import SVGP, Adam, ResNetFeatures, Standardizer

sys.modules["farama_notifications"] = None  # else the next line prints news of robot hands
from gymnasium_robotics.envs.maze.ant_maze_v5 import AntMazeEnv  # noqa: E402
from gymnasium_robotics.envs.maze.maze_v4 import MazeEnv  # noqa: E402


@dataclass
class Args:
    # the experiment
    method: Literal["random", "sac", "be", "pts", "pts-be"] = "pts-be"  # be: with the bonus; pts: on imagined data
    bonus: Literal["eig", "entropy", "variance", "error"] = "eig"  # intrinsic reward r^i of be and pts-be
    dynamics: Literal["de", "gp", "dk"] = "de"  # model p(f): deep ensemble, sparse variational GP, deep kernel
    maze: str = "small-open"  # small-open, large-open, u-shape, or a text file: # wall, . free, r start, g goal
    random_torques: Literal["uniform", "coin"] = "coin"  # of random actions, real and imagined; coin: each +1 or -1
    total_timesteps: int = 20_000  # steps of the simulator, T
    reset_interval: int = 1000  # steps after which an episode is truncated and begins anew
    action_repeat: int = 3  # steps for which torques are held: 0.15 s
    stop_at_goal: bool = True  # end the run at the goal; otherwise a new episode begins there
    # the run
    seed: int = 1  # of environment, networks and all sampling
    run_name: str | None = None  # folder under runs/, instead of {env}__{method}-{bonus}-{dynamics}__{seed}__{time}
    eval_episodes: int = 0  # episodes with the policy's mean action, without learning, at every picture and at the end
    cuda: bool = False  # networks on the GPU; the CPU is faster at the default sizes
    track: bool = False  # log to Weights and Biases as well
    wandb_project_name: str = "ptsbe"  # project there
    wandb_entity: str | None = None  # user or team there
    capture_video: bool = False  # film an episode with the policy's mean action after the run
    save_model: bool = False  # save policy and dynamics model as model.pt
    # Algorithm 1
    warmup_steps: int = 1500  # steps with random actions before the first update, t_warm
    policy_interval: int = 30  # steps between two updates of the policy, t_policy
    model_interval: int = 99  # steps between two updates of the dynamics model, t_model
    rollouts: int = 100  # imagined trajectories of a planning, K
    horizon: int = 16  # actions in an imagined trajectory, J
    replayed_starts: float = 0.9  # share of trajectories that start in visited states, the rest in the present one
    random_actions: float = 0.7  # share of imagined actions that are random: else critics see the policy's alone
    survival: bool = True  # imagined futures count exp(-EIG): what was learned cannot be learned again further on
    real_share: float = 0.0  # share of real transitions in the batches of pts and pts-be, as in MBPO
    lookahead: int = 4  # act with the first of so many imagined actions, of the best of K trajectories; 0: policy
    policy_updates: int = 12  # gradient steps on the policy in an update, G
    model_updates: int = 40  # gradient steps on the dynamics model in an update, ten times as many in the first
    eta: float = 10.0  # weight of the bonus, eta: a constant, so that the bonus fades as the model learns
    eta_decay: float = 1.0  # eta_t = eta * eta_decay ** (t / 1000)
    # dynamics model
    ensemble_size: int = 3  # networks in the deep ensemble, M
    position_dims: int = 2  # leading variables of the observation that tell the place
    prior_size: float = 3.0  # deviation of what members expect of an unknown place, in units of the targets' deviation
    eig_outputs: int = 2  # leading outputs that EIG counts: the displacement; with the body's, tumbling would pay
    eig_noise: float = 3.5  # noise that EIG assumes at least, in the same units: small disagreements count little
    # SAC
    policy_lr: float = 1e-3  # learning rate of actor, critics and temperature
    gamma: float = 0.995  # discount factor of an action
    temperature: float = 0.0002  # weight of the policy's entropy, alpha; 0: tuned as Haarnoja et al. do


TUNED = {  # what a method or a model runs with where no flag says otherwise
    "sac": {"policy_updates": 24, "temperature": 0.0, "gamma": 0.98},
    "be": {"policy_updates": 24, "eig_noise": 1.0, "eta": 50.0, "temperature": 0.02, "gamma": 0.98},
    # a GP's prior is as large as the targets, not prior_size times as large; its updates are of all the data
    "gp": {"eig_noise": 1.2, "model_updates": 5},
    "dk": {"eig_noise": 1.2, "model_updates": 5, "model_interval": 300},
}


def parse(argv: list[str] | None = None) -> Args:
    """The flags of the command line, those that are not given as TUNED has them for the method and the model."""
    argv = sys.argv[1:] if argv is None else argv
    choice = tyro.cli(Args, args=[word for word in argv if word not in ("-h", "--help")])
    tuned = TUNED.get(choice.method, {}) | TUNED.get(choice.dynamics, {})
    return tyro.cli(Args, args=argv, default=replace(Args(), **tuned), description=__doc__)


RANGES = {  # least and largest value of flags; of all other numbers 1 and infinity
    "seed eval_episodes lookahead eta eta_decay prior_size eig_noise policy_lr temperature": (0, math.inf),
    "replayed_starts random_actions real_share gamma": (0, 1),
    "position_dims": (1, 30),
}

LENGTH_SCALES = 0.7, 1.0  # how sharply the dynamics may change; how far from visited places members disagree
GP_UNITS = ()  # of states and actions for the GP, none: those of the data
GP_FIT = {"gp": (0.05, math.inf), "dk": (0.05, math.inf)}  # learning rate; prior deviation of log length-scales
PICTURES = 500  # steps between two pictures for TensorBoard
MODEL_WIDTH, MODEL_BATCH, MODEL_LR, MODEL_DROPOUT = 256, 128, 3e-3, 0.2  # networks of the ensemble and their training
# Fourier features of the place: of the networks, of priors; the first variable of the observation that networks see
MODEL_FEATURES, PLACE_FEATURES, BODY = 0, 512, 4
POLICY_WIDTH, POLICY_BATCH = 128, 256  # networks of SAC and their batches
# By method, leading variables that its critics see and expectile of returns that they learn, if not all and 0.5. A
# planner's see the place: the noise of a value over heading, joints and spin is larger than what one candidate's way
# gains over another. And as most imagined torques are random, mean returns reach 3 m, this expectile some 14 m.
CRITICS = dict.fromkeys(("pts", "pts-be"), (2, 0.9))
# Leading variables in which no state is imagined beyond the range of those visited. The model does not learn walls from
# the heading, and what lies behind them stays unknown for ever.
BOUNDED = 2


# ----------------------------------------------------------------------------------------------------- environment

CELL, PARTS, RADIUS = 4.0, 4, 0.5  # width of a cell in m; coverage counts squares of 1 / PARTS of it; of the goal

MAZES = {  # rows from above, `#` wall, `.` free, `r` start, `g` goal
    "small-open": "#####/#r..#/#...#/#..g#/#####",
    "large-open": "#######/#r....#/#.....#/#.....#/#.....#/#....g#/#######",
    "u-shape": "#####/#r..#/###.#/#g..#/#####",
}

# What the agent sees: position (2) and heading as cos, sin (2); then what does not depend on where the ant is and which
# way it faces: height, the torso's upward direction in its own frame (3), velocity as seen from the heading (3), joint
# angles (8), angular velocity in the torso's frame (3), velocities of the joints (8). In units of about 1.
UNITS = np.array([0.5] * 2 + [1] * 2 + [2] * 4 + [0.9] * 3 + [2] * 8 + [0.35] * 3 + [0.8] * 8, np.float32)
HEADING, UPWARD, SPEED = slice(2, 4), slice(5, 8), slice(8, 10)
SQUARE = UNITS[0] * CELL / PARTS  # width of a square as the agent sees it


def parse_map(text: str) -> np.ndarray:
    """The characters of a map (rows, columns), or a ValueError that names the place and the reason."""
    rows = [row.rstrip() for row in text.rstrip().replace("/", "\n").split("\n")]
    for i, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise ValueError(f"row {i} has {len(row)} cells and row 1 has {len(rows[0])}: all rows must be as long")
        for j, cell in enumerate(row, 1):
            allowed = "#" if i in (1, len(rows)) or j in (1, len(row)) else "#.rg"
            if cell not in allowed:
                raise ValueError(f"row {i}, column {j} is {cell!r}, it must be one of {allowed}: walls form the border")
    cells = np.array([list(row) for row in rows])
    for mark in "rg":
        if len(at := np.argwhere(cells == mark) + 1) != 1:
            raise ValueError(f"{len(at)} cells are marked {mark}, it must be one; [row, column]: {at.tolist()}")
    if not reachable(cells)[cells == "g"]:
        raise ValueError(f"walls part the goal g in row {at[0][0]}, column {at[0][1]} from the start r")
    return cells


def reachable(cells: np.ndarray) -> np.ndarray:
    """The cells that can be reached from the start: (rows, columns)."""
    found, before = cells == "r", 0
    while found.sum() > before:
        before = found.sum()
        for shift, axis in ((1, 0), (-1, 0), (1, 1), (-1, 1)):  # the border is closed, nothing comes in around it
            found |= np.roll(found, shift, axis) & (cells != "#")
    return found


class Hold(gym.Wrapper):
    """Every action is held for some steps: the sum of their rewards, and as info["path"] their observations (n, S)."""

    def __init__(self, env: gym.Env, steps: int):
        super().__init__(env)
        self.steps = steps

    def step(self, action: np.ndarray):
        path, total, done = [], 0.0, False
        while len(path) < self.steps and not done:
            state, reward, terminated, truncated, info = self.env.step(action)
            path.append(state)
            total, done = total + float(reward), terminated or truncated
        return state, total, terminated, truncated, info | {"path": np.stack(path)}


class HighWalls(MazeEnv):
    """Walls of 12 m from the start: the library's are 2 m, and ants jump over them. No noise on start and goal.

    It stands between AntMazeEnv, which hard-codes both, and MazeEnv, which takes them.
    """

    def __init__(self, *inputs, **options):
        super().__init__(*inputs, **options | {"maze_height": 12 / CELL, "position_noise_range": 0.0})


class AntMaze(AntMazeEnv, HighWalls):
    """Gymnasium-Robotics' AntMaze with HighWalls and a goal that counts only for an ant on the ground."""

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: dict) -> bool:
        return bool(np.linalg.norm(achieved_goal - desired_goal) <= RADIUS and self.data.qpos[2] < 1)


class CoinFlips(gym.spaces.Box):
    """Torques in [-1, 1] whose random samples are of full size, +1 or -1 each: uniform ones hardly move an ant."""

    def sample(self, *_, **__) -> np.ndarray:
        return self.np_random.choice([-1, 1], self.shape).astype(np.float32)


def observe(data: mujoco.MjData) -> np.ndarray:
    """What the agent sees of the simulator's state: (30,)."""
    matrix = np.empty(9)
    mujoco.mju_quat2Mat(matrix, data.qpos[3:7])
    matrix = matrix.reshape(3, 3)  # from the torso's frame to the world's
    cos, sin = matrix[:2, 0] / max(np.linalg.norm(matrix[:2, 0]), 1e-9)  # of the torso's x axis on the floor
    (x, y, z), joints, rates = data.qvel[:3], data.qpos[7:], data.qvel[3:]
    velocity = cos * x + sin * y, cos * y - sin * x, z
    parts = data.qpos[:2], (cos, sin), data.qpos[2:3], matrix[2], velocity, joints, rates
    return (UNITS * np.concatenate(parts)).astype(np.float32)


def make_env(args: Args, render_mode: str | None = None) -> tuple[gym.Env, "Visits"]:
    """Gymnasium-Robotics' AntMaze: what `observe` sees, reward exp(-distance to the goal in m) at every step.

    The goal terminates an episode, reset_interval truncates it; nothing happens to an ant on its back.
    """
    try:
        cells = parse_map(MAZES[args.maze] if args.maze in MAZES else Path(args.maze).read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        refuse(f"--maze {args.maze} must be one of {', '.join(MAZES)} or a text file with a map: {error}")
    os.environ.setdefault("MUJOCO_GL", "egl" if sys.platform == "linux" else "glfw")  # videos need no screen
    walls = [[{"#": 1, ".": 0}.get(character, character) for character in row] for row in cells.tolist()]
    env = AntMaze(render_mode, walls, "dense", continuing_task=False, include_cfrc_ext_in_observation=False)
    camera = {"distance": 6 * CELL * max(cells.shape), "elevation": -90.0, "azimuth": 90.0, "lookat": np.zeros(3)}
    env.ant_env.model.vis.global_.fovy = 10  # from far away, so that high walls hide little
    env.ant_env.mujoco_renderer.default_cam_config = camera  # from above, the whole maze
    Path(env.tmp_xml_file_path).unlink()  # the library leaves a file in the temporary folder otherwise
    space = CoinFlips if args.random_torques == "coin" else gym.spaces.Box
    env.action_space = space(-1.0, 1.0, env.action_space.shape, np.float32)
    env.action_space.seed(args.seed)
    env, data = gym.wrappers.TimeLimit(env, args.reset_interval), env.data
    space = gym.spaces.Box(-np.inf, np.inf, UNITS.shape, np.float32)
    env = gym.wrappers.TransformObservation(env, lambda _: observe(data), space)
    return Hold(gym.wrappers.RecordEpisodeStatistics(env), args.action_repeat), Visits(args.maze, cells)


def random_like(actions: Tensor, args: Args) -> Tensor:
    """Actions as the random policy takes them, as many as these."""
    uniform = 2 * torch.rand_like(actions) - 1
    return uniform.sign() if args.random_torques == "coin" else uniform


def turn(vectors: Tensor, heading: Tensor) -> Tensor:
    """Vectors of the plane (..., 2) turned by the angle of a heading (cos, sin)."""
    (x, y), (cos, sin) = vectors.unbind(-1), heading.unbind(-1)
    return torch.stack([cos * x - sin * y, sin * x + cos * y], -1)


def change(states: Tensor, next_states: Tensor) -> Tensor:
    """What the model learns to predict of next states, as seen from the heading before: (..., S).

    Displacement, cos and sin of the angle by which the ant turned, and the differences of all else: the same whichever
    way the ant faces.
    """
    changes, back = next_states - states, states[..., HEADING] * torch.tensor([1.0, -1.0])
    turned = turn(next_states[..., HEADING], back)
    changes[..., :2] = turn(changes[..., :2], back)
    changes[..., HEADING] = turned
    changes[..., SPEED] = turn(next_states[..., SPEED], turned) - states[..., SPEED]
    return changes


def changed(states: Tensor, changes: Tensor) -> Tensor:
    """States after such changes."""
    after, heading, turned = states + changes, states[..., HEADING], F.normalize(changes[..., HEADING], dim=-1)
    after[..., :2] = states[..., :2] + turn(changes[..., :2], heading)
    after[..., HEADING] = turn(turned, heading)
    after[..., SPEED] = turn(after[..., SPEED], turned * torch.tensor([1.0, -1.0]))
    return after


def valid(states: Tensor) -> Tensor:
    """Imagined states, put back among those that are possible: directions have their length."""
    states = states.clone()
    states[..., HEADING] = F.normalize(states[..., HEADING], dim=-1)
    states[..., UPWARD] = 2 * F.normalize(states[..., UPWARD], dim=-1)
    return states


def worth(rewards: Tensor, seen: Tensor) -> Tensor:
    """Rewards as the agent counts them, of which these were seen: they are of a size of 1 already."""
    return rewards


class Visits:
    """Where the agent was in the maze, for measures and pictures: nothing of it reaches the agent."""

    FLOOR, WALL, HOT = np.array([(255, 250, 235), (45, 50, 60), (170, 10, 45)])
    EARLY, LATE = np.array([(90, 120, 235), (250, 120, 0)])

    def __init__(self, maze: str, cells: np.ndarray):
        self.name = f"AntMaze-{Path(maze).stem}"
        self.free = reachable(cells).repeat(PARTS, 0).repeat(PARTS, 1)  # squares, (height, width)
        self.size = np.array(self.free.shape[::-1])
        self.start, self.goal = (PARTS * (np.argwhere(cells == mark)[0, ::-1] + 0.5) for mark in "rg")
        self.visited, self.path = np.zeros_like(self.free), []  # the path in squares (column, row), (n, 2) each
        self.min_distance, self.solved_step = math.inf, None
        self.on_back = np.zeros(2)  # steps on its back, steps

    def add(self, states: np.ndarray, step: int, terminated: bool = False) -> None:
        """States (n, S) that were visited up to a step; the map's centre is the origin, y points upwards."""
        path = states[:, :2] / (SQUARE, -SQUARE) + self.size / 2
        self.path.append(path)
        self.step = step
        self.on_back += (states[:, UPWARD][:, 2] < 0).sum(), len(states)
        self.visited[tuple(path.astype(int).T[::-1])] = True
        distance = CELL / PARTS * np.linalg.norm(path - self.goal, axis=-1).min()
        self.min_distance = min(self.min_distance, float(distance))
        if terminated and self.solved_step is None:
            self.solved_step = step

    def metrics(self) -> dict[str, float | int | None]:
        coverage = float(self.visited[self.free].mean())  # share of the squares that can be reached
        found = {"coverage": coverage, "min_distance": self.min_distance, "solved_step": self.solved_step}
        return found | {"on_back": float(self.on_back[0] / self.on_back[1])}

    def probes(self) -> np.ndarray:
        """Inputs of the model at which EIG is drawn, an ant at rest in every free square, no torques: (P, 38)."""
        positions = (np.argwhere(self.free)[:, ::-1] + 0.5 - self.size / 2) * (SQUARE, -SQUARE)
        rest = [1, 0, 1.5, 0, 0, 2, *[0] * 30]  # upright
        return np.concatenate([positions, np.tile(rest, (len(positions), 1))], 1).astype(np.float32)

    def picture(self, title: str, eig: np.ndarray | None = None) -> np.ndarray:
        """The EIG of the probes (P,) as a map or, without it, the path, above a scale: (height, width, 3)."""
        path, zoom = np.concatenate(self.path), 600 / self.size.max()  # pixels of a square
        low, high, ends = self.EARLY, self.LATE, ("step 0", f"step {self.step}")
        colours = np.where(self.free[..., None], self.FLOOR, self.WALL)
        if eig is not None:
            path, low, high, ends = path[:0], self.FLOOR, self.HOT, ("0", f"{eig.max():.2g} nats")
            colours[self.free] = low + eig[:, None] / max(eig.max(), 1e-12) * (high - low)
        rows, columns = ((np.arange(zoom * squares) / zoom).astype(int) for squares in self.free.shape)  # of pixels
        image = np.full((730, 640, 3), 255, np.uint8)
        image[50 : 50 + len(rows), 20 : 20 + len(columns)] = colours[np.ix_(rows, columns)]
        image[660:680, 20:620] = np.linspace(low, high, 600)
        image = Image.fromarray(image)
        draw = ImageDraw.Draw(image)
        draw.font = ImageFont.load_default(22)
        for place, colour in zip(path, np.linspace(low, high, len(path)).astype(int), strict=True):
            draw.circle((20, 50) + zoom * place, max(2, zoom / 12), tuple(colour))
        for name, place, colour in (("start", self.start, "black"), ("goal", self.goal, (20, 150, 70))):
            draw.circle((20, 50) + zoom * place, RADIUS * PARTS / CELL * zoom, outline=colour, width=4)
            draw.text((20, 50) + zoom * place, name, colour, anchor="mm")
        for place, text, anchor in (((20, 14), title, "la"), ((20, 690), ends[0], "la"), ((620, 690), ends[1], "ra")):
            draw.text(place, text, "black", anchor=anchor)
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


class SAC(nn.Module):
    """Tanh-Gaussian actor, twin critics and temperature, and the update of Haarnoja et al. (2018).

    All networks see the state and Fourier features of the place. Densities are relative to the uniform policy: its
    entropy is 0 and that of all others negative, so that nothing is earned by going on where nothing is learnt. What
    critics learn is an expectile of the returns (as in implicit Q-learning, Kostrikov et al., 2022); at 0.5 their mean.
    """

    FEATURES, LENGTH_SCALE, TAU = 64, 1.0, 0.02
    MIN_LOG_STD, MAX_LOG_STD = -3.0, 0.5  # before the tanh

    def __init__(self, state_dim: int, action_dim: int, args: Args):
        super().__init__()
        self.tuned, self.target_entropy = args.temperature == 0, -action_dim * (1 + math.log(2))  # over the uniform's
        self.features = FourierFeatures(1, args.position_dims or state_dim, self.FEATURES, self.LENGTH_SCALE)
        self.actor = BatchedMLP(1, (self.FEATURES + state_dim, POLICY_WIDTH, POLICY_WIDTH, 2 * action_dim))
        sees, self.expectile = CRITICS.get(args.method, (state_dim, 0.5))
        self.valued = self.FEATURES + sees  # leading part of a code for the critics
        sizes = (self.valued + action_dim, POLICY_WIDTH, POLICY_WIDTH, 1)
        self.critics, self.targets = BatchedMLP(2, sizes), BatchedMLP(2, sizes)
        self.targets.load_state_dict(self.critics.state_dict())
        self.log_temperature = nn.Parameter(torch.tensor(math.log(args.temperature or 0.2)))
        self.optimizer = Adam(self.parameters(), args.policy_lr, fused=True)

    def encode(self, state: Tensor) -> Tensor:
        """What the networks see of a state: (N, S) -> (N, code)."""
        return torch.cat([self.features(state[None])[0], state], -1)

    def sample(self, code: Tensor, spread: bool = True) -> tuple[Tensor, Tensor]:
        """Actions and the logarithm of their density over the uniform one: (N, code) -> (N, A), (N,)."""
        mean, raw = self.actor(code[None])[0].chunk(2, -1)  # (N, A) each
        log_std = self.MIN_LOG_STD + 0.5 * (self.MAX_LOG_STD - self.MIN_LOG_STD) * (raw.tanh() + 1)
        noise = torch.randn_like(mean) if spread else torch.zeros_like(mean)
        before = torch.addcmul(mean, log_std.exp(), noise)  # (N, A), a = tanh(before)
        # log N(before) - log(1 - tanh(before)^2), the latter as 2 (log 2 - before - softplus(-2 before)), + log 2
        log_prob = 2 * (before + F.softplus(-2 * before)) - log_std - 0.5 * (noise.square() + math.log(8 * math.pi))
        return before.tanh(), log_prob.sum(-1)

    @torch.no_grad()
    def act(self, state: Tensor, spread: bool = True) -> tuple[Tensor, Tensor]:
        """Actions and their log-densities, without spread the mean action: (N, S) -> (N, A), (N,)."""
        return self.sample(self.encode(state), spread)

    def quality(self, critics: BatchedMLP, code: Tensor, action: Tensor, frozen: bool = False) -> Tensor:
        """Values of actions by both critics: (N, code), (N, A) -> (2, N)."""
        return critics(torch.cat([code[:, : self.valued], action], -1).expand(2, -1, -1), frozen)[..., 0]

    @torch.no_grad()
    def value(self, state: Tensor) -> Tensor:
        """Soft value by the target critics: (N, S) -> (N,)."""
        code = self.encode(state)
        action, log_prob = self.sample(code)
        return self.quality(self.targets, code, action).amin(0) - self.log_temperature.exp() * log_prob

    def update(self, states: Tensor, actions: Tensor, returns: Tensor) -> dict[str, Tensor]:
        """One gradient step of everything on a batch (N, S), (N, A), (N,); its losses, entropies and values."""
        code, temperature = self.encode(states), self.log_temperature.exp().detach()
        missing = returns - self.quality(self.critics, code, actions)  # (2, N)
        weight = torch.where(missing > 0, self.expectile, 1 - self.expectile)
        critic_loss = 2 * (weight * missing.square()).mean(1).sum()
        new_actions, log_prob = self.sample(code)
        value = self.quality(self.critics, code, new_actions, frozen=True).min(0).values  # (N,)
        actor_loss = (temperature * log_prob - value).mean()
        self.optimizer.zero_grad()
        (critic_loss + actor_loss).backward()
        if self.tuned:
            self.log_temperature.grad = -(log_prob.detach().mean() + self.target_entropy)
        self.optimizer.step()  # what has no gradient stays: targets, and a temperature that is given
        with torch.no_grad():
            for target, parameter in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target.lerp_(parameter, self.TAU)
        return {"critic": critic_loss, "actor": actor_loss, "entropy": -log_prob, "value": value}


# ------------------------------------------------------------------------------------------------------ imagination


@torch.no_grad()
def imagine(policy: SAC, dynamics: Dynamics, start: Tensor, horizon: int, eta: float, args: Args, sample: bool = True):
    """Alg. 1, lines 7 to 9: K trajectories of J actions inside the model from the states start (K, S).

    Returns states (J * K, S), actions (J * K, A) and soft returns (J * K,), the first steps first. A trajectory of
    draws lives in one world: a wall that one of five members doubts is passed by a fifth of the trajectories, and not
    by all of them sooner or later. To compare actions (the look-ahead) trajectories follow the mean of the worlds. No
    outcome is believed beyond those seen, nor a place, where it is BOUNDED. With a bonus, a gain of information leaves
    exp(-EIG) of the possible worlds, and so much of what follows counts. Without one EIG must not act: where values
    are negative, an end is a reward.
    """
    state, steps, row = start, [], torch.arange(len(start))
    for _ in range(horizon):
        action, log_prob = policy.act(state)  # (K, A), (K,)
        own = torch.rand_like(action[:, :1]) >= args.random_actions  # (K, 1)
        action = torch.where(own, action, random_like(action, args))
        mean, var = dynamics.predict(torch.cat([state, action], -1))  # (M, K, D) each
        y = mean.mean(0)  # (K, D)
        if sample:
            world = row % len(mean)
            y = mean[world, row] + var[world, row].sqrt() * torch.randn_like(y)
        y = y.clamp(*dynamics.seen[:, -y.shape[1] :])
        steps.append((state, action, log_prob[:, None], y, mean, var))
        state = valid(changed(state, y[:, :-2]))
        state[:, :BOUNDED] = state[:, :BOUNDED].clamp(*dynamics.seen[:, :BOUNDED])
    states, actions, log_probs, y, mean, var = (torch.cat(column, -2) for column in zip(*steps, strict=True))
    rewards, survival = worth(y[:, -2], dynamics.seen[:, -2]), 1 - y[:, -1]  # (J * K,)
    if eta:  # r = r^e + eta r^i
        found = bonuses(dynamics, mean, var)
        rewards = rewards + eta * found[args.bonus]
        survival = survival * (-found["eig"] * args.survival).exp()
    soft = -policy.log_temperature.exp() * log_probs[:, 0]  # an action's entropy counts for the step before
    rewards, discounts, soft = (part.view(horizon, -1) for part in (rewards, args.gamma * survival, soft))  # (J, K)
    returns, ahead = torch.empty_like(rewards), policy.value(state)  # the value of what follows, (K,)
    for j in reversed(range(horizon)):
        returns[j] = rewards[j] + discounts[j] * ahead
        ahead = returns[j] + soft[j]
    return states, actions, returns.flatten()


def draw(policy: SAC, x: Tensor, y: Tensor, rewards: Tensor, imagined: tuple[Tensor, ...], args: Args) -> list[Tensor]:
    """A batch of states, actions and returns: of imagined transitions and of real ones, with one-step returns."""
    state_dim, real = y.shape[1] - 2, round(args.real_share * POLICY_BATCH) if len(imagined[0]) else POLICY_BATCH
    i, j = torch.randint(len(x), (real,)), torch.randint(max(1, len(imagined[0])), (POLICY_BATCH - real,))
    states, actions, returns = x[i, :state_dim], x[i, state_dim:], rewards[i]
    if real:
        after = valid(changed(states, y[i, :state_dim]))
        returns = returns + args.gamma * (1 - y[i, -1]) * policy.value(after)
    return [torch.cat([a, b[j]]) for a, b in zip((states, actions, returns), imagined, strict=True)]


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


def evaluate(policy: SAC, args: Args, episodes: int, film: Path | None = None) -> dict[str, float]:
    """Episodes with the policy's mean action and without learning; with a folder `film`, before a camera."""
    env, _ = make_env(args, "rgb_array" if film else None)
    env = gym.wrappers.RecordVideo(env, str(film), disable_logger=True) if film else env
    ends = []
    for episode in range(episodes):
        state, info = env.reset(seed=args.seed + episode)
        while "episode" not in info:  # it is there at the end of one
            action = policy.act(torch.as_tensor(state)[None], spread=False)[0][0].cpu().numpy()
            action = env.action_space.sample() if args.method == "random" else action
            state, _, terminated, _, info = env.step(action)
        ends.append((terminated, info["episode"]["r"]))
    env.close()
    return dict(zip(("eval_success", "eval_return"), np.mean(ends, 0).tolist(), strict=True))


# -------------------------------------------------------------------------------------------------------------- main


def main(args: Args) -> dict:
    check(args)
    if args.cuda:
        torch.set_default_device("cuda")  # of every tensor that is made from here on
    torch.manual_seed(args.seed)
    env, visits = make_env(args)
    state_dim, action_dim = env.observation_space.shape[0], env.action_space.shape[0]
    in_dim, out_dim = state_dim + action_dim, state_dim + 2
    plans, explores = args.method in ("pts", "pts-be"), args.method in ("be", "pts-be")

    # Alg. 1, line 1: policy, model, and D_env as rows of [state, action] and [state change, reward, end]
    policy = SAC(state_dim, action_dim, args)
    dynamics = (PriorEnsemble if args.dynamics == "de" else SparseGP)(in_dim, out_dim, args)
    xs, ys = torch.zeros(args.total_timesteps, in_dim), torch.zeros(args.total_timesteps, out_dim)
    step = rows = fitted = 0  # steps of the simulator, rows of D_env, rows when the model was last updated

    state = torch.as_tensor(env.reset(seed=args.seed)[0])
    visits.add(state[None].cpu().numpy(), step)
    with Run(args, visits, policy=policy, dynamics=dynamics) as run:
        while step < args.total_timesteps and not run.stopped:  # line 2
            eta = args.eta * args.eta_decay ** (step / 1000) if explores else 0.0
            if args.method == "random" or step < args.warmup_steps:  # line 3
                action = torch.as_tensor(env.action_space.sample())
            elif plans and args.lookahead:
                start = state.expand(args.rollouts, -1)
                _, actions, returns = imagine(policy, dynamics, start, args.lookahead, eta, args, sample=False)
                action = actions[returns[: args.rollouts].argmax()]
            else:
                action = policy.act(state[None])[0][0]
            after, reward, terminated, truncated, info = env.step(action.cpu().numpy())
            if not np.isfinite(after).all():
                raise FloatingPointError(f"the state after step {step} is not finite")
            after, held = torch.as_tensor(after), len(info["path"])
            xs[rows] = torch.cat([state, action])  # line 4
            ys[rows] = torch.cat([change(state, after), torch.tensor([reward, terminated])])
            state, rows, step = after, rows + 1, step + held
            visits.add(info["path"], step, terminated)
            run.progress(step)
            if terminated or truncated:
                episode = info["episode"]
                run.log(step, "charts", {"episodic_return": episode["r"], "episodic_length": episode["l"]})
                if terminated and args.stop_at_goal:
                    break
                state = torch.as_tensor(env.reset()[0])
                visits.add(state[None].cpu().numpy(), step)
            if step % PICTURES < held:
                attempt(show, run, step, dynamics if fitted else None)
                if args.eval_episodes:
                    run.log(step, "charts", evaluate(policy, args, args.eval_episodes))

            if args.method == "random" or step < args.warmup_steps:  # line 5
                continue
            x, y = xs[:rows], ys[:rows]
            # lines 12 to 14, before the policy, whose first planning needs a model
            if args.method != "sac" and (not fitted or step % args.model_interval < held):
                before = bonuses(dynamics, *dynamics.predict(x[fitted:]), y[fitted:])
                loss = dynamics.fit(x, y, args.model_updates if fitted else 10 * args.model_updates)
                learned = bonuses(dynamics, *dynamics.predict(x[fitted:]))["eig"]
                run.log(step, "bonus", before | {"eig_after": learned})
                run.log(step, "losses", {"dynamics": loss})
                fitted = rows
            if step % args.policy_interval >= held:  # line 6
                continue
            imagined = x[:0, :state_dim], x[:0, state_dim:], y[:0, -2]
            if plans:  # lines 7 to 9
                replayed = x[torch.randint(rows, (args.rollouts,)), :state_dim]  # (K, S)
                start = torch.where(torch.rand(args.rollouts, 1) < args.replayed_starts, replayed, state)
                imagined = imagine(policy, dynamics, start, args.horizon, eta, args)
            rewards = worth(y[:, -2], y[:, -2])
            if eta and (args.real_share or not plans):  # line 9 on real transitions
                rewards = rewards + eta * bonuses(dynamics, *dynamics.predict(x), y)[args.bonus]
            for _ in range(args.policy_updates):  # lines 10 and 11
                losses = policy.update(*draw(policy, x, y, rewards, imagined, args))
            run.log(step, "losses", losses)

    tasks = [(show, run, step, dynamics if fitted else None)]
    tasks += [(evaluate, policy, args, 1, run.folder / "videos")] if args.capture_video else []
    tasks += [(evaluate, policy, args, args.eval_episodes)] if args.eval_episodes else []
    return run.finish(step, ys[:rows, -2].sum().item(), tasks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(parse())
