"""From `benchmark/results/` to the paper's figures and to Markdown tables.

    python benchmark/plot.py mountaincar

Lines are medians over seeds with quartile bands. Tables give counts, medians with quartiles, and means with bootstrap
95 % intervals; a run that never reached the goal counts with its full length.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import matplotlib
import numpy as np
import tyro

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
NOISES = ("heteroskedastic", "homoskedastic")


@dataclass
class Args:
    experiment: Annotated[str, tyro.conf.Positional]
    """name of the experiment, as in sweep.py"""
    results: Path = ROOT / "benchmark" / "results"
    """folder of the CSV files; the table is written here as well"""
    figures: Path = ROOT / "benchmark" / "figures"
    """folder of the pictures"""


def read_rows(path: Path) -> dict[str, list[dict[str, str]]]:
    """Rows of a CSV file, grouped by their label."""
    if not path.exists():
        print(f"error: {path} does not exist: run benchmark/sweep.py first", file=sys.stderr)
        raise SystemExit(2)
    groups = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            groups[row["label"]].append(row)
    return groups


def curve_matrix(rows: Iterable[dict[str, str]], tag: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps (T,) and values (seeds, T) of one curve, cut at the shortest run."""
    curves = [
        (np.fromstring(r["steps"], sep=" "), np.fromstring(r["values"], sep=" ")) for r in rows if r["tag"] == tag
    ]
    length = min(len(steps) for steps, _ in curves)
    return curves[0][0][:length], np.stack([values[:length] for _, values in curves])


def bootstrap_interval(values: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """95 % interval of the mean, by resampling the seeds."""
    rng = np.random.default_rng(0)
    means = rng.choice(values, (draws, len(values))).mean(1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def draw_band(axis: plt.Axes, steps: np.ndarray, values: np.ndarray, label: str, color: str, style: str = "-") -> None:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
    axis.plot(steps, middle, style, color=color, label=label, linewidth=1.8)
    axis.fill_between(steps, low, high, color=color, alpha=0.09, linewidth=0)


def save(figure: plt.Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=160)
    plt.close(figure)


# ---------------------------------------------------------------------------------------------------------- mountaincar

MOUNTAINCAR = {  # label -> name, colour, line
    "random": ("Random", "#777777", ":"),
    "ppo": ("PPO, -1 a step", "#777777", "--"),
    "be-entropy": ("BE-H", "#d98c1f", "--"),
    "be-eig": ("BE-EIG", "#b3202c", "--"),
    "pts-no-reward": ("PTS, no reward at all", "#7b4fa3", ":"),
    "pts": ("PTS, -1 a step", "#7b4fa3", "-"),
    "pts-be-entropy": ("PTS-BE-H", "#d98c1f", "-"),
    "pts-be-eig": ("PTS-BE-EIG", "#b3202c", "-"),
    "pts-be-eig-gp": ("PTS-BE-EIG, GP", "#1f4e9c", "-"),
    "pts-be-eig-dk": ("PTS-BE-EIG, deep kernel", "#1b7a3d", "-"),
}


def goal_row(name: str, rows: list[dict[str, str]]) -> str:
    solved = np.array([row["solved"] == "True" for row in rows])
    steps = np.array([int(row["solved_step"] or row["total_timesteps"]) for row in rows])
    coverage = np.array([float(row["coverage"]) for row in rows])
    low, middle, high = np.quantile(steps, [0.25, 0.5, 0.75])
    interval = tuple(100 * bound for bound in bootstrap_interval(coverage))
    rate = tuple(100 * bound for bound in bootstrap_interval(solved.astype(float)))
    median = f"{middle:.0f} [{low:.0f}, {high:.0f}]" if solved.any() else "-"
    cells = [
        name,
        f"{solved.sum()}/{len(rows)} [{rate[0]:.0f}, {rate[1]:.0f} %]",
        median,
        f"{100 * coverage.mean():.1f} [{interval[0]:.1f}, {interval[1]:.1f}]",
        f"{np.median([float(row['wall_time_s']) for row in rows]):.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def mountaincar(args: Args) -> None:
    results, curves = (read_rows(args.results / f"mountaincar{end}.csv") for end in ("", "_curves"))
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.8), sharey=True)
    text = []
    for axis, noise in zip(axes, NOISES, strict=True):
        header = "reached the goal | steps to it | coverage, % | seconds"
        text += [f"\n**{noise.capitalize()} noise**\n", f"| method | {header} |", "|---" * 5 + "|"]
        for label, (name, color, style) in MOUNTAINCAR.items():
            key = f"{label}/{noise}"
            if key in results:
                steps, values = curve_matrix(curves[key], "charts/coverage")
                draw_band(axis, steps, 100 * values, name, color, style)
                text.append(goal_row(name, results[key]))
        axis.set(title=f"{noise} noise", xlabel="environment steps")
    axes[0].set_ylabel("visited cells, % of reachable")
    axes[0].legend(fontsize=8)
    save(figure, args.figures / "mountaincar_coverage.png")
    table = "\n".join(text).strip() + "\n"
    (args.results / "mountaincar.md").write_text(table)
    print(table)


def mountaincar_measures(args: Args) -> None:
    curves = read_rows(args.results / "mountaincar_measures_curves.csv")
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6))
    tags = {"bonus/error": "prediction error", "bonus/entropy": "entropy, nats", "bonus/eig": "EIG, nats"}
    text = ["| noise | measure | peak | last quarter, mean | last value |", "|---|---|---|---|---|"]
    for axis, (tag, title) in zip(axes, tags.items(), strict=True):
        for noise, color in zip(NOISES, ("#b3202c", "#1f4e9c"), strict=True):
            steps, values = curve_matrix(curves[noise], tag)
            draw_band(axis, np.arange(1, len(steps) + 1), values, noise, color)
            mean = values.mean(0)
            cells = (mean.max(), mean[-len(mean) // 4 :].mean(), mean[-1])
            text.append(f"| {noise} | {title} | " + " | ".join(f"{cell:.4g}" for cell in cells) + " |")
        axis.set(title=title, xlabel="model updates")
    axes[0].legend(fontsize=8)
    save(figure, args.figures / "mountaincar_measures.png")
    table = "\n".join(text) + "\n"
    (args.results / "mountaincar_measures.md").write_text(table)
    print(table)


# ------------------------------------------------------------------------------------------------------------- unichain

UNICHAIN = {  # label -> name, colour, line
    "random": ("Random", "#777777", ":"),
    "ppo": ("PPO", "#777777", "--"),
    "be-error": ("PPO, l2 error", "#d98c1f", "--"),
    "icm": ("PPO, ICM", "#d98c1f", "-"),
    "vime": ("PPO, VIME", "#7b4fa3", "-"),
    "pts": ("PTS (no bonus)", "#7b4fa3", ":"),
    "pts-be-gp": ("PTS-BE-GP", "#1f4e9c", "-"),
    "pts-be-dk": ("PTS-BE-DK", "#1b7a3d", "-"),
    "pts-be-de": ("PTS-BE-DE", "#b3202c", "-"),
}
CHAINS = {"L50": "L = 50", "L100": "L = 100", "L50-noisy": "L = 50, every tenth action random"}


def chain_row(name: str, rows: list[dict[str, str]]) -> str:
    reached = np.array([row["solved"] == "True" for row in rows])
    steps = np.array([int(row["solved_step"] or row["total_timesteps"]) for row in rows])
    low, middle, high = np.quantile(steps, [0.25, 0.5, 0.75])
    cells = [name, f"{reached.sum()}/{len(rows)}", f"{middle:.0f} [{low:.0f}, {high:.0f}]" if reached.any() else "-"]
    for column, digits in (("coverage", 3), ("episodic_return", 1)):
        values = np.array([float(row[column]) for row in rows])
        bounds = bootstrap_interval(values)
        cells.append(f"{values.mean():.{digits}f} [{bounds[0]:.{digits}f}, {bounds[1]:.{digits}f}]")
    return "| " + " | ".join(cells) + " |"


def unichain(args: Args) -> None:
    results, curves = (read_rows(args.results / f"unichain{end}.csv") for end in ("", "_curves"))
    figure, axes = plt.subplots(2, 3, figsize=(13, 7), sharex="col")
    text = []
    for column, (chain, title) in zip(axes.T, CHAINS.items(), strict=True):
        header = "last state reached | steps to it | coverage | cumulative reward"
        text += [f"\n**{title}**\n", f"| method | {header} |", "|---" * 5 + "|"]
        for label, (name, color, style) in UNICHAIN.items():
            key = f"{label}/{chain}"
            if key in results:
                for axis, tag in zip(column, ("charts/coverage", "charts/cumulative_reward"), strict=True):
                    draw_band(axis, *curve_matrix(curves[key], tag), name, color, style)
                text.append(chain_row(name, results[key]))
        column[0].set_title(title)
        column[1].set_xlabel("environment steps")
    axes[0, 0].set_ylabel("fraction of states visited")
    axes[1, 0].set_ylabel("cumulative reward")
    axes[0, 0].legend(fontsize=8)
    save(figure, args.figures / "unichain.png")
    table = "\n".join(text).strip() + "\n"
    (args.results / "unichain.md").write_text(table)
    print(table)


PLOTS = {"mountaincar": mountaincar, "mountaincar_measures": mountaincar_measures, "unichain": unichain}


def main(args: Args) -> None:
    if args.experiment not in PLOTS:
        print(f"error: no plot for {args.experiment!r}: choose from {', '.join(PLOTS)}", file=sys.stderr)
        raise SystemExit(2)
    PLOTS[args.experiment](args)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
