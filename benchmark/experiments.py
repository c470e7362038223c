"""What is measured: the experiments that sweep.py runs, each a script and what its variants are called with.

Labels are `method/environment`. Every method runs with its script's own settings; flags here say what is compared.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Experiment:
    script: str
    variants: dict[str, str]  # label -> flags, after the name of another script where it is not this one
    seeds: tuple[int, ...] = tuple(range(1, 21))
    curves: tuple[str, ...] = ()  # TensorBoard keys to keep; visits: squares of a maze
    every: int = 1  # of each curve, what was logged last every so many steps; 1: all


NOISES = ("heteroskedastic", "homoskedastic")
MOUNTAINCAR = {  # every method with the flags that did best on seeds 1001 and up
    "random": "--method random",
    "ppo": "--method ppo",
    "be-entropy": "--method be --bonus entropy --eta 0.03",
    "be-eig": "--method be --bonus eig",
    "pts-no-reward": "--method pts-be --eta 0",
    "pts": "--method pts",
    "pts-be-entropy": "--method pts-be --bonus entropy --eta 0.03",
    "pts-be-eig": "--method pts-be --bonus eig",
    "pts-be-eig-gp": "--method pts-be --bonus eig --dynamics gp",
    "pts-be-eig-dk": "--method pts-be --bonus eig --dynamics dk",
}

CHAINS = {
    "L50": "--length 50 --total-timesteps 200",
    "L100": "--length 100 --total-timesteps 400",
    "L50-noisy": "--length 50 --total-timesteps 200 --noise 0.1",
}
UNICHAIN = {
    "random": "--method random",
    "ppo": "--method ppo",
    "be-error": "--method be --bonus error",
    "icm": "baselines/ppo_icm_unichain.py",
    "vime": "baselines/ppo_vime_unichain.py",
    "pts": "--method pts",
    "pts-be-gp": "--method pts-be --dynamics gp",
    "pts-be-dk": "--method pts-be --dynamics dk",
    "pts-be-de": "--method pts-be --dynamics de",
}

MAZES = ("open", "u-shape", "double-u-shape", "obstacles")
MAZE = {method: f"--method {method}" for method in ("random", "sac", "be", "pts", "pts-be")}  # each as it is tuned
MAZE_MODELS = {f"pts-be-{model}": f"--method pts-be --dynamics {model}" for model in ("gp", "dk")}
MAZE_ABLATIONS = {  # PTS-BE without one of its parts; the control without the bonus is PTS
    "no-lookahead": "--lookahead 0",
    "no-survival": "--no-survival",
    "no-prior": "--prior-size 0",
    "no-random-actions": "--random-actions 0",
    "no-noise-floor": "--eig-noise 0",
    # Algorithm 1 as it is printed: nothing of the above
    "algorithm-1": "--rollouts 16 --horizon 64 --lookahead 0 --no-survival --prior-size 0 --random-actions 0"
    " --eig-noise 0",
}

ANTMAZE = {  # each as it is tuned; coin flips are the warm-up of all
    "random-uniform": "--method random --random-torques uniform",
    "random": "--method random",
    **{method: f"--method {method}" for method in ("sac", "be", "pts", "pts-be")},
}
ANTMAZES = {"small-open": 10_000, "large-open": 20_000}  # and the steps of a run, which does not stop at the goal
ANT_CURVES = ("charts/coverage", "charts/min_distance", "bonus/eig", "visits")

CONTINUOUS = {  # tasks that pay only where they are solved, and one that pays everywhere
    "mountain-car": "MountainCarContinuous-v0",
    "sparse-pendulum": "benchmark.sparse_envs:SparsePendulum-v0",
    "sparse-reacher": "benchmark.sparse_envs:SparseReacher-v0",
}
PENDULUM = {f"{method}/pendulum": f"--method {method} --env-id Pendulum-v1" for method in ("sac", "pts-be")}


def maze_experiment(methods: dict[str, str], mazes: tuple[str, ...]) -> Experiment:
    return Experiment(
        script="ptsbe_sac_maze.py",
        variants={f"{name}/{maze}": f"{flags} --maze {maze}" for maze in mazes for name, flags in methods.items()},
        curves=("charts/coverage", "visits"),
        every=100,
    )


EXPERIMENTS = {
    "mountaincar": Experiment(
        script="ptsbe_ppo_mountaincar.py",
        variants={
            f"{name}/{noise}": f"{flags} --noise {noise}" for name, flags in MOUNTAINCAR.items() for noise in NOISES
        },
        curves=("charts/coverage",),
        every=20,
    ),
    "mountaincar_measures": Experiment(
        script="ptsbe_ppo_mountaincar.py",
        variants={
            # without bonus and reward BE's policy stays uniform, and its model is fitted
            noise: f"--method be --eta 0 --model-interval 64 --total-timesteps 9600 --noise {noise}"
            for noise in NOISES
        },
        curves=("bonus/error", "bonus/entropy", "bonus/eig"),
    ),
    "unichain": Experiment(
        script="ptsbe_ppo_unichain.py",
        variants={f"{name}/{chain}": f"{a} {b}" for name, a in UNICHAIN.items() for chain, b in CHAINS.items()},
        curves=("charts/coverage", "charts/cumulative_reward"),
        every=5,
    ),
    "unichain_swap": Experiment(
        script="ptsbe_ppo_unichain.py",
        variants={
            f"{name}/{swap}": f"{flags} --swap {swap} --total-timesteps 300"
            for name, flags in UNICHAIN.items()
            for swap in ("half", "random")
        },
        curves=("charts/coverage", "charts/cumulative_reward"),
        every=5,
    ),
    "maze": maze_experiment(MAZE, MAZES),
    "maze_models": maze_experiment(MAZE_MODELS, ("u-shape", "double-u-shape")),
    "maze_ablations": maze_experiment(MAZE_ABLATIONS, ("double-u-shape", "obstacles")),
    "antmaze": Experiment(
        script="ptsbe_sac_antmaze.py",
        variants={
            f"{name}/{maze}": f"{flags} --maze {maze} --total-timesteps {steps} --no-stop-at-goal"
            for maze, steps in ANTMAZES.items()
            for name, flags in ANTMAZE.items()
        },
        seeds=tuple(range(1, 11)),
        curves=ANT_CURVES,
        every=100,
    ),
    "antmaze_models": Experiment(  # twice the time of the ensemble
        script="ptsbe_sac_antmaze.py",
        variants={"pts-be-dk/large-open": "--dynamics dk --maze large-open --total-timesteps 20000 --no-stop-at-goal"},
        seeds=tuple(range(1, 11)),
        curves=ANT_CURVES,
        every=100,
    ),
    "continuous_action": Experiment(
        script="ptsbe_sac_continuous_action.py",
        variants={
            f"{method}/{task}": f"{flags} --env-id {env_id} --total-timesteps 5000 --eval-episodes 3"
            for task, env_id in CONTINUOUS.items()
            for method, flags in MAZE.items()
        }
        | {label: f"{flags} --total-timesteps 3000 --eval-episodes 3" for label, flags in PENDULUM.items()},
        seeds=tuple(range(1, 11)),
        curves=("charts/coverage", "charts/eval_return"),
        every=500,
    ),
}
