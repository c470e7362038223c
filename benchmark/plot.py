"""From `benchmark/results/` to the paper's figures and to Markdown tables.

    python benchmark/plot.py mountaincar

Lines are medians over seeds with quartile bands. Tables give counts, medians with quartiles, and means with bootstrap
95 % intervals; a run that never reached the goal counts with its full length.
"""

import csv
import math
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
sys.path.insert(0, str(ROOT))
NOISES = ("heteroskedastic", "homoskedastic")


@dataclass
class Args:
    experiment: Annotated[str, tyro.conf.Positional]
    """name of the experiment, as in sweep.py"""
    results: Path = ROOT / "benchmark" / "results"
    """folder of the CSV files; the table is written here as well"""
    figures: Path = ROOT / "benchmark" / "figures"
    """folder of the pictures"""
    pages: Path = ROOT
    """folder of README.md and benchmark/README.md, which hold tables between markers"""


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
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    figure.savefig(path, dpi=160)
    plt.close(figure)


def insert(page: Path, marker: str, lines: list[str]) -> None:
    """Put lines between `<!-- marker -->` and the next `<!-- end -->` of a page."""
    before, found, rest = page.read_text().partition(f"<!-- {marker} -->\n")
    if found:
        page.write_text(before + found + "\n".join(lines) + "\n" + rest[rest.index("<!-- end -->") :])


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


def steps_sooner(rows: list[dict[str, str]], others: list[dict[str, str]]) -> str:
    """How many steps sooner the last state is reached than by others with the same seed, with its interval."""
    seconds = {row["seed"]: row for row in others}
    steps = [[int(r["solved_step"] or r["total_timesteps"]) for r in (row, seconds[row["seed"]])] for row in rows]
    sooner = np.subtract(*np.array(steps).T[::-1])
    low, high = bootstrap_interval(sooner)
    return f"{sooner.mean():.0f} [{low:.0f}, {high:.0f}]"


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
        models = [results.get(f"pts-be-{model}/{chain}") for model in ("gp", "dk", "de")]
        if all(models):
            gp, dk = (steps_sooner(model, models[-1]) for model in models[:-1])
            text.append(f"\nSteps sooner than PTS-BE-DE on the same seeds: PTS-BE-GP {gp}, PTS-BE-DK {dk}.")
        column[0].set_title(title)
        column[1].set_xlabel("environment steps")
    axes[0, 0].set_ylabel("fraction of states visited")
    axes[1, 0].set_ylabel("cumulative reward")
    axes[1, 0].legend(fontsize=8)
    save(figure, args.figures / "unichain.png")
    table = "\n".join(text).strip() + "\n"
    (args.results / "unichain.md").write_text(table)
    print(table)


# ----------------------------------------------------------------------------------------------------------------- maze

MAZE = {  # label -> name, colour, line
    "random": ("Random", "#777777", ":"),
    "sac": ("SAC", "#777777", "--"),
    "be": ("BE-SAC", "#d98c1f", "-"),
    "pts": ("PTS-SAC", "#7b4fa3", "-"),
    "pts-be": ("PTS-BE-SAC", "#b3202c", "-"),
    "pts-be-gp": ("PTS-BE-SAC, GP", "#1f4e9c", "-"),
    "pts-be-dk": ("PTS-BE-SAC, deep kernel", "#1b7a3d", "-"),
}
MAZES = {"open": "Open", "u-shape": "U Shape", "double-u-shape": "Double U Shape", "obstacles": "Obstacles"}
HEAT_MAPS = ("sac", "be", "pts", "pts-be")  # the paper's four
MAZE_ABLATIONS = {  # the first two are rows of the sweep `maze`
    "pts-be": "all of it",
    "pts": "no bonus: PTS",
    "no-prior": "no prior functions",
    "no-survival": "no survival, exp(-EIG)",
    "no-lookahead": "no look-ahead",
    "no-random-actions": "no random imagined actions",
    "no-noise-floor": "no floor of the noise in EIG",
    "algorithm-1": "Algorithm 1 as printed, K = 16, J = 64, without all of the above but the bonus",
}


def arrivals(rows: list[dict[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Steps to the goal, or taken without reaching it, and whether it was reached: 2 x (runs,)."""
    reached = np.array([row["solved"] == "True" for row in rows])
    return np.array([int(row["solved_step"] or row["steps"]) for row in rows]), reached


def reached_by(steps: np.ndarray, reached: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Probability of having reached the goal by each step of `at`: one minus the Kaplan-Meier estimate."""
    times = np.unique(steps[reached])
    at_risk = (steps[:, None] >= times).sum(0)  # runs that were under way, (times,)
    events = ((steps[:, None] == times) & reached[:, None]).sum(0)
    missing = np.concatenate([[1.0], np.cumprod(1 - events / at_risk)])
    return 1 - missing[np.searchsorted(times, at, side="right")]


def log_rank(steps: np.ndarray, reached: np.ndarray, other_steps: np.ndarray, other_reached: np.ndarray) -> float:
    """Two-sided p-value of the log-rank test (Mantel, 1966) that both arrive at the same rate."""
    observed_minus_expected = variance = 0.0
    for time in np.unique(np.concatenate([steps[reached], other_steps[other_reached]])):
        ours, theirs = (steps >= time).sum(), (other_steps >= time).sum()  # at risk
        events = ((steps == time) & reached).sum()
        total, all_events = ours + theirs, events + ((other_steps == time) & other_reached).sum()
        observed_minus_expected += events - all_events * ours / total
        if total > 1:
            variance += all_events * ours / total * theirs / total * (total - all_events) / (total - 1)
    if variance == 0:
        return 1.0
    return math.erfc(abs(observed_minus_expected) / math.sqrt(2 * variance))


def p_value(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def maze_row(name: str, rows: list[dict[str, str]], reference: list[dict[str, str]], cap: int) -> str:
    """A line of the table; the reference is PTS-BE, `ratio` its restricted mean over this one's."""
    (steps, reached), (reference_steps, reference_reached) = arrivals(rows), arrivals(reference)
    limited, reference_limited = np.where(reached, steps, cap), np.where(reference_reached, reference_steps, cap)
    low, middle, high = np.quantile(limited, [0.25, 0.5, 0.75])
    bounds = bootstrap_interval(limited)
    coverage = np.array([float(row["coverage"]) for row in rows])
    seconds = [1000 * float(row["wall_time_s"]) / int(row["steps"]) for row in rows]
    p = log_rank(reference_steps, reference_reached, steps, reached)
    cells = [
        name,
        f"{reached.sum()}/{len(rows)}",
        f"{limited.mean():.0f} [{bounds[0]:.0f}, {bounds[1]:.0f}]",
        f"{middle:.0f} [{low:.0f}, {high:.0f}]" if middle < cap else f"> {cap}",
        "" if rows is reference else f"{reference_limited.mean() / limited.mean():.2f}",
        "" if rows is reference else p_value(p),
        f"{100 * coverage.mean():.0f}",
        f"{np.median(seconds):.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def maze_overview(results: dict[str, list[dict[str, str]]]) -> list[str]:
    """The table of the README: runs that arrived, and restricted mean steps."""
    text = [f"| | {' | '.join(MAZES.values())} |", "|---" * (1 + len(MAZES)) + "|"]
    for label, (name, *_) in MAZE.items():
        cells = []
        for key in MAZES:
            steps, reached = arrivals(results.get(f"{label}/{key}", []))
            cells.append(f"{reached.sum()}/{len(steps)}, {steps.mean():.0f}" if len(steps) else "")
        if any(cells):
            text.append(f"| {name} | {' | '.join(cells)} |")
    return text


def maze_ablations(results: dict[str, list[dict[str, str]]]) -> list[str]:
    """PTS-BE without one of its parts, each row with the log-rank test against PTS-BE on the same seeds."""
    labels = list(MAZE_ABLATIONS)[2:]
    mazes = {key: name for key, name in MAZES.items() if any(f"{label}/{key}" in results for label in labels)}
    if not mazes:
        return []
    seeds = {row["seed"] for key in mazes for label in labels for row in results.get(f"{label}/{key}", [])}
    title = "PTS-BE without one of its parts"
    text = [f"\n**{title}** ({len(seeds)} seeds; arrived, restricted mean steps, p of log-rank)\n"]
    text += [f"| | {' | '.join(mazes.values())} |", "|---" * (1 + len(mazes)) + "|"]
    for label, name in MAZE_ABLATIONS.items():
        cells = []
        for key in mazes:
            rows = [row for row in results.get(f"{label}/{key}", []) if row["seed"] in seeds]
            if not rows:
                cells.append("")
                continue
            paired = {row["seed"] for row in rows}
            whole = arrivals([row for row in results[f"pts-be/{key}"] if row["seed"] in paired])
            steps, reached = arrivals(rows)
            p = "" if label == "pts-be" else f", p {p_value(log_rank(*whole, steps, reached))}"
            cells.append(f"{reached.sum()}/{len(steps)}, {steps.mean():.0f}{p}")
        text.append(f"| {name} | {' | '.join(cells)} |")
    return text


def maze_fading(curves: dict[str, list[dict[str, str]]]) -> list[str]:
    """EIG of new transitions, before and after the model learned from them, over runs that go on after the goal."""
    if not (rows := curves.get("pts-be-full/u-shape")):
        return []
    spans = ((0, 500), (500, 1000), (1000, 2000), (2000, 4000), (4000, 5000))
    header = " | ".join(f"{low} to {high}" for low, high in spans)
    text = [f"\n**EIG of new transitions in U Shape** (mean of {len(rows) // 2} runs in nats; steps)\n"]
    text += [f"| | {header} |", "|---" * (1 + len(spans)) + "|"]
    for tag, name in (("bonus/eig", "before the model learned from them"), ("bonus/eig_after", "after")):
        points = [
            [np.fromstring(row[part], sep=" ") for part in ("steps", "values")] for row in rows if row["tag"] == tag
        ]
        steps, values = (np.concatenate(part) for part in zip(*points, strict=True))
        cells = [f"{values[(steps > low) & (steps <= high)].mean():.2g}" for low, high in spans]
        text.append(f"| {name} | {' | '.join(cells)} |")
    return text


def maze(args: Args) -> None:
    results, curves = (read_rows(args.results / f"maze{end}.csv") for end in ("", "_curves"))
    for more in ("maze_models", "maze_ablations"):
        if (args.results / f"{more}.csv").exists():
            results |= read_rows(args.results / f"{more}.csv")
    full = args.results / "maze_full_curves.csv"
    fading = maze_fading(read_rows(full)) if full.exists() else []
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), sharex=True, sharey=True, layout="constrained")
    lines, text = {}, []
    for axis, (key, title) in zip(axes.flat, MAZES.items(), strict=True):
        found = {label: results[f"{label}/{key}"] for label in MAZE if f"{label}/{key}" in results}
        if not found:
            continue
        cap = max(int(row["total_timesteps"]) for rows in found.values() for row in rows)
        header = "reached the goal | restricted mean steps | median steps | ratio | p, log-rank | coverage, % | seconds"
        text += [f"\n**{title}** (cap {cap} steps; seconds per 1000 steps)\n"]
        text += [f"| method | {header} |", "|---" * 8 + "|"]
        at = np.arange(cap + 1)
        for label, rows in found.items():
            name, color, style = MAZE[label]
            (lines[name],) = axis.plot(at, reached_by(*arrivals(rows), at), style, color=color, linewidth=1.8)
            text.append(maze_row(name, rows, found.get("pts-be", rows), cap))
        axis.set(title=title, ylim=(-0.02, 1.02))
    for axis in axes[1]:
        axis.set_xlabel("environment steps, t")
    for axis in axes[:, 0]:
        axis.set_ylabel("probability of having reached the goal by t")
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, fontsize=9)
    save(figure, args.figures / "maze.png")
    overview, details = maze_overview(results), [*text, *maze_ablations(results), *fading]
    insert(args.pages / "README.md", "maze", overview)
    insert(args.pages / "benchmark" / "README.md", "maze", details)
    print("\n".join([*overview, *details]))
    maze_visits(args, curves)


def maze_visits(args: Args, curves: dict[str, list[dict[str, str]]]) -> None:
    """Where the runs were: for each maze, the mean number of steps that a run spent in each square."""
    from ptsbe_sac_maze import MAZES as MAPS
    from ptsbe_sac_maze import Visits, parse_map

    places = {key: Visits(key, parse_map(MAPS[key])) for key in MAZES}
    figure, axes = plt.subplots(
        len(MAZES),
        len(HEAT_MAPS),
        figsize=(11, 12),
        layout="constrained",
        gridspec_kw={"height_ratios": [place.size[1] / place.size[0] for place in places.values()]},
    )
    for row, (key, place) in zip(axes, places.items(), strict=True):
        for axis, label in zip(row, HEAT_MAPS, strict=True):
            runs = [run for run in curves.get(f"{label}/{key}", []) if run["tag"] == "visits"]
            visits = np.zeros(place.free.shape)
            for run in runs:
                squares = np.array([square.split(":") for square in run["steps"].split()], dtype=int)  # (n, 2)
                visits[squares[:, 1], squares[:, 0]] += np.fromstring(run["values"], sep=" ")
            seen = np.where(visits > 0, visits / max(len(runs), 1), np.nan)
            extent = (0, place.size[0], place.size[1], 0)
            axis.imshow(np.where(place.free, 1.0, 0.25), cmap="gray", vmin=0, vmax=1, extent=extent)
            axis.imshow(seen, cmap="YlOrRd", norm=matplotlib.colors.LogNorm(0.05, 50), extent=extent)
            axis.plot(*place.start, "o", color="#1f4e9c", markersize=5)
            axis.plot(*place.goal, "*", color="#1b7a3d", markersize=9)
            axis.set(xticks=[], yticks=[], title=MAZE[label][0] if key == next(iter(MAZES)) else None)
        row[0].set_ylabel(MAZES[key])
    label = "steps that a run spent in a square of 0.25 m, mean over seeds"
    figure.colorbar(axes[0, 0].images[-1], ax=axes, location="bottom", label=label, aspect=50, shrink=0.6)
    save(figure, args.figures / "maze_visits.png")


# -------------------------------------------------------------------------------------------------------------- antmaze

ANTMAZE = {"random-uniform": ("Random, uniform", "#bbbbbb", ":"), "random": ("Random, coin flips", "#777777", ":")}
ANTMAZE |= {label: MAZE[label] for label in ("sac", "be", "pts", "pts-be", "pts-be-dk")}
ANTMAZES = {"small-open": "Small Open", "large-open": "Large Open"}


def coverage_at(rows: list[dict[str, str]], step: int) -> dict[str, float]:
    """Coverage of each seed when it was last logged by a step; rows are curves."""
    found = {}
    for row in rows:
        if row["tag"] == "charts/coverage":
            steps, values = (np.fromstring(row[part], sep=" ") for part in ("steps", "values"))
            found[row["seed"]] = float(values[np.searchsorted(steps, step, "right") - 1])
    return found


def ratio_of_means(ours: dict[str, float], theirs: dict[str, float], draws: int = 10_000) -> str:
    """Ratio of two means over the seeds they share, with a 95 % interval by resampling the pairs."""
    seeds = sorted(ours.keys() & theirs.keys())
    pairs = np.array([(ours[seed], theirs[seed]) for seed in seeds])
    means = np.random.default_rng(0).choice(pairs, (draws, len(pairs))).mean(1)  # (draws, 2)
    low, high = np.quantile(means[:, 0] / means[:, 1], [0.025, 0.975])
    return f"{pairs[:, 0].mean() / pairs[:, 1].mean():.2f} [{low:.2f}, {high:.2f}]"


def antmaze_overview(results: dict[str, list[dict[str, str]]], curves: dict[str, list[dict[str, str]]]) -> list[str]:
    """The table of the README: runs that arrived, restricted mean steps, coverage after 10,000 steps."""
    text = [f"| | {' | '.join(ANTMAZES.values())} |", "|---" * (1 + len(ANTMAZES)) + "|"]
    for label, (name, *_) in ANTMAZE.items():
        cells = []
        for key in ANTMAZES:
            steps, reached = arrivals(results.get(f"{label}/{key}", []))
            covered = list(coverage_at(curves.get(f"{label}/{key}", []), 10_000).values())
            cells.append(f"{reached.sum()}/{len(steps)}, {steps.mean():.0f}, {np.mean(covered):.2f}" if covered else "")
        if any(cells):
            text.append(f"| {name} | {' | '.join(cells)} |")
    return text


def ant_model(results: Path) -> list[str]:
    """What `ant_model.py` measured: R^2 of the model, means over seeds, and the speed of every run."""
    with (results / "ant_model.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    moments = sorted({int(row["steps"]) for row in rows})
    columns = {"velocity_1": "velocity change in a hold", "position_3": "position after 0.45 s", "eig": "EIG"}
    header = " | ".join(f"{title}, {moment // 1000}k" for title in columns.values() for moment in moments)
    seeds = len({row["seed"] for row in rows})
    text = [f"| held-out R^2, and EIG in nats, mean of {seeds} seeds | {header} | seconds per 1000 steps |"]
    text += ["|---" * (2 + len(columns) * len(moments)) + "|"]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        found = [row for row in rows if row["variant"] == variant]
        cells = [
            f"{np.mean([float(row[column]) for row in found if int(row['steps']) == moment]):.2g}"
            for column in columns
            for moment in moments
        ]
        cells.append(f"{np.mean([float(row['seconds_per_1000']) for row in found]):.1f}")
        text.append(f"| {variant} | {' | '.join(cells)} |")
    with (results / "ant_direction.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for span, name in (("2000_6000", "2000 to 6000"), ("6000_12000", "6000 to 12,000")):
        speeds = [float(row[f"speed_{span}"]) for row in rows]
        each = ", ".join(f"{speed:.2f}" for speed in speeds)
        text.append(f"\nSpeed in a commanded direction over steps {name}: {np.mean(speeds):.2f} m/s ({each}).")
    return text


def antmaze(args: Args) -> None:
    results, curves = (read_rows(args.results / f"antmaze{end}.csv") for end in ("", "_curves"))
    if (args.results / "antmaze_models.csv").exists():
        results |= read_rows(args.results / "antmaze_models.csv")
        curves |= read_rows(args.results / "antmaze_models_curves.csv")
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    lines, text = {}, []
    for row, (key, title) in zip(axes, ANTMAZES.items(), strict=True):
        found = {label: results[f"{label}/{key}"] for label in ANTMAZE if f"{label}/{key}" in results}
        if not found:
            continue
        cap = max(int(run["total_timesteps"]) for rows in found.values() for run in rows)
        moments = [moment for moment in (5000, 10_000, 20_000) if moment <= cap]
        header = " | ".join(f"coverage at {moment // 1000}k" for moment in moments)
        header = f"reached the goal | restricted mean steps | {header} | PTS-BE's at 10k to it | on its back | seconds"
        text += [f"\n**{title}** (runs of {cap} steps, mean coverage of squares of 1 m; seconds per 1000 steps)\n"]
        text += [f"| method | {header} |", "|---" * (6 + len(moments)) + "|"]
        for label, rows in found.items():
            name, color, style = ANTMAZE[label]
            run_curves = curves[f"{label}/{key}"]
            for axis, tag in zip(row, ("coverage", "min_distance"), strict=True):
                steps, values = curve_matrix(run_curves, f"charts/{tag}")
                draw_band(axis, steps, values, name, color, style)
            (lines[name],) = row[0].plot([], [], style, color=color)
            steps = np.array([int(run["solved_step"] or cap) for run in rows])
            cells = [f"{sum(run['solved'] == 'True' for run in rows)}/{len(rows)}", f"{steps.mean():.0f}"]
            cells += [f"{np.mean(list(coverage_at(run_curves, moment).values())):.2f}" for moment in moments]
            ours = coverage_at(curves.get(f"pts-be/{key}", []), 10_000)
            shared = ours.keys() & {run["seed"] for run in rows}
            paired = len(shared) > 2 and label != "pts-be"
            cells.append(ratio_of_means(ours, coverage_at(run_curves, 10_000)) if paired else "")
            cells.append(f"{np.mean([float(run['on_back']) for run in rows]):.2f}")
            seconds = [1000 * float(run["wall_time_s"]) / int(run["steps"]) for run in rows]
            text.append("| " + " | ".join([name, *cells, f"{np.median(seconds):.1f}"]) + " |")
        row[0].set(title=title, ylabel="coverage", ylim=(0, 1))
        row[1].set(title=title, ylabel="smallest distance to the goal so far, m", ylim=(0, None))
    for axis in axes[1]:
        axis.set_xlabel("environment steps")
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, fontsize=9)
    save(figure, args.figures / "antmaze.png")
    overview = antmaze_overview(results, curves)
    insert(args.pages / "README.md", "antmaze", overview)
    insert(args.pages / "benchmark" / "README.md", "antmaze", text)
    insert(args.pages / "benchmark" / "README.md", "ant model", ant_model(ROOT / "benchmark" / "results"))
    print("\n".join([*overview, *text]))


PLOTS = {"mountaincar": mountaincar, "mountaincar_measures": mountaincar_measures, "unichain": unichain}
PLOTS |= {"maze": maze, "antmaze": antmaze}


def main(args: Args) -> None:
    if args.experiment not in PLOTS:
        print(f"error: no plot for {args.experiment!r}: choose from {', '.join(PLOTS)}", file=sys.stderr)
        raise SystemExit(2)
    PLOTS[args.experiment](args)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
