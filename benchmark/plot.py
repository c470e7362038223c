"""From `benchmark/results/` to the figures, and to the tables between the markers of the pages.

    python benchmark/plot.py maze      # one experiment
    python benchmark/plot.py           # all that have results

What stands between `<!-- table: name -->` and `<!-- end -->` in a page is replaced, nothing else is. Curves and tables
show means over seeds with 95 % bootstrap intervals; medians come with quartiles. A run that never reached the goal
counts with its full length (a restricted mean). A method has the same name and colour everywhere.
"""

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
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
Rows = list[dict[str, str]]

METHODS = {  # label -> name, colour, line
    "random-uniform": ("Random, uniform", "#a8a8a8", (0, (1, 3))),
    "random": ("Random", "#8a8a8a", ":"),
    "ppo": ("PPO", "#6f86b3", "--"),
    "sac": ("SAC", "#6f86b3", "--"),
    "be-error": ("BE, error", "#8c8c1f", "--"),
    "icm": ("PPO with ICM", "#a0622d", "-"),
    "vime": ("PPO with VIME", "#1a9c9c", "-"),
    "be-entropy": ("BE, entropy", "#c9a227", "--"),
    "be-eig": ("BE", "#e0851b", "-"),
    "be": ("BE", "#e0851b", "-"),
    "pts-no-reward": ("PTS, no reward at all", "#9467bd", ":"),
    "pts": ("PTS", "#9467bd", "-"),
    "pts-be-entropy": ("PTS-BE, entropy", "#d667a8", "--"),
    **dict.fromkeys(("pts-be", "pts-be-de", "pts-be-eig"), ("PTS-BE", "#d13e4e", "-")),
    **dict.fromkeys(("pts-be-gp", "pts-be-eig-gp"), ("PTS-BE, GP", "#3b7dd8", "-")),
    **dict.fromkeys(("pts-be-dk", "pts-be-eig-dk"), ("PTS-BE, deep kernel", "#2a9d5c", "-")),
    "heteroskedastic": ("heteroskedastic noise", "#6aa800", "-"),
    "homoskedastic": ("homoskedastic noise", "#8a8a8a", "--"),
}
OURS = ("pts-be", "pts-be-de", "pts-be-eig")  # PTS-BE as it is by default
NOISES = {"heteroskedastic": "Heteroskedastic noise", "homoskedastic": "Homoskedastic noise"}
CHAINS = {"L50": "50 states", "L100": "100 states", "L50-noisy": "50 states, every tenth action random"}
CHAINS |= {
    "half": "50 states, left and right swapped beyond the middle, 300 steps",
    "random": "50 states, swapped at random",
}
MAZES = {"open": "Open", "u-shape": "U Shape", "double-u-shape": "Double U Shape", "obstacles": "Obstacles"}
ANTMAZES = {"small-open": "Small Open", "large-open": "Large Open"}
SPARSE = {"mountain-car": "Mountain Car", "sparse-pendulum": "Sparse pendulum", "sparse-reacher": "Sparse reacher"}
OVERVIEW = {  # experiment -> script, goal, its environments, what the paper says of its PTS-BE
    "mountaincar": ("ptsbe_ppo_mountaincar.py", "noisy Mountain Car, two noises, 1000 steps", NOISES, "35/40"),
    "unichain": (
        "ptsbe_ppo_unichain.py",
        "the end of chains of 50 and 100 states, 200 and 400 steps",
        ("L50", "L100"),
        "100 states covered in about 150 steps",
    ),
    "maze": ("ptsbe_sac_maze.py", "the goal of four point mazes, 5000 steps", MAZES, "ahead of SAC, BE and PTS"),
    "antmaze": (
        "ptsbe_sac_antmaze.py",
        "the goal of two ant mazes, 10,000 and 20,000 steps",
        ANTMAZES,
        "arrives, after 7281 and 15,237 steps",
    ),
    "continuous_action": (
        "ptsbe_sac_continuous_action.py",
        "the first reward of three sparse tasks, 5000 steps",
        SPARSE,
        "not in it",
    ),
}

plt.rcParams |= {"font.size": 11, "axes.titlesize": 11, "legend.fontsize": 10, "savefig.transparent": True}
plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "lines.linewidth": 1.8}
for part in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
    plt.rcParams[part] = "#777777"  # can be read on a light and on a dark page


@dataclass
class Args:
    experiment: Annotated[str, tyro.conf.Positional] = "all"
    """name of an experiment, as in sweep.py, or regression, speed, peers, or all of them"""
    results: Path = ROOT / "benchmark" / "results"
    """folder of the CSV files"""
    figures: Path = ROOT / "benchmark" / "figures"
    """folder of the pictures"""
    pages: Path = ROOT
    """folder of README.md and benchmark/, whose pages hold tables between markers"""


# ------------------------------------------------------------------------------------------------ reading and writing


def read(path: Path) -> Rows:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_groups(results: Path, *names: str) -> dict[str, Rows]:
    """Rows of the CSV files that there are, grouped by their label; the first file must be there."""
    groups = defaultdict(list)
    for path in [results / f"{name}.csv" for name in names]:
        if path.exists():
            for row in read(path):
                groups[row["label"]].append(row)
        elif path.stem == names[0]:
            print(f"error: {path} does not exist: run benchmark/sweep.py first", file=sys.stderr)
            raise SystemExit(2)
    return groups


def of(groups: dict[str, Rows], environment: str) -> dict[str, Rows]:
    """Rows of an environment by method, in the order of METHODS."""
    return {label: groups[f"{label}/{environment}"] for label in METHODS if f"{label}/{environment}" in groups}


def table(rows: list[dict[str, str]]) -> list[str]:
    """Rows with the same columns as Markdown."""
    if not rows:
        return []
    lines = [list(rows[0]), ["---"] * len(rows[0]), *[list(row.values()) for row in rows]]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def insert(page: Path, name: str, lines: list[str]) -> None:
    """Put lines between `<!-- table: name -->` and the next `<!-- end -->` of a page, where it has them."""
    before, found, rest = page.read_text().partition(f"<!-- table: {name} -->\n") if page.exists() else ("", "", "")
    if found:
        page.write_text(before + found + "\n".join(lines).strip() + "\n" + rest[rest.index("<!-- end -->") :])


def save(figure: plt.Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


# --------------------------------------------------------------------------------------------------------- statistics


def bootstrap_interval(values: np.ndarray, draws: int = 10_000) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of the mean over the first axis, by resampling the seeds."""
    count = len(values)
    weights = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), draws) / count  # (draws, seeds)
    return tuple(np.quantile(weights @ values, [0.025, 0.975], axis=0))


def mean(values: Iterable[float], digits: int) -> str:
    values = np.array(list(values))
    low, high = bootstrap_interval(values)
    return f"{values.mean():.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def arrivals(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Steps to the goal, or taken without reaching it, and whether it was reached: 2 x (runs,)."""
    reached = np.array([row["solved"] == "True" for row in rows], bool)
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


def ratio_of_means(ours: dict[str, float], theirs: dict[str, float], draws: int = 10_000) -> str:
    """Ratio of two means over the seeds they share, with a 95 % interval by resampling the pairs."""
    pairs = np.array([(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())])
    means = np.random.default_rng(0).choice(pairs, (draws, len(pairs))).mean(1)  # (draws, 2)
    low, high = np.quantile(means[:, 0] / means[:, 1], [0.025, 0.975])
    return f"{pairs[:, 0].mean() / pairs[:, 1].mean():.2f} [{low:.2f}, {high:.2f}]"


def describe(label: str, rows: Rows) -> dict[str, str]:
    """What every table of a goal begins with."""
    steps, reached = arrivals(rows)
    low, middle, high = np.quantile(steps, [0.25, 0.5, 0.75])
    never = 2 * reached.sum() < len(rows)
    return {
        "method": METHODS[label][0],
        "reached it": f"{reached.sum()}/{len(rows)}",
        "steps, mean [95 %]": mean(steps, 0),
        "median [quartiles]": f"> {steps.max()}" if never else f"{middle:.0f} [{low:.0f}, {high:.0f}]",
    }


def coverage(rows: Rows) -> str:
    return mean((100 * float(row["coverage"]) for row in rows), 1)


def seconds(rows: Rows) -> str:
    """Wall time per 1000 steps, which a shared machine makes a rough measure."""
    return f"{np.median([1000 * float(row['wall_time_s']) / int(row['steps']) for row in rows]):.1f}"


# ------------------------------------------------------------------------------------------------------------- curves


def curve_matrix(rows: Rows, tag: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps (T,) that all runs have been through, and the values last logged by then (seeds, T), of one curve."""
    curves = [[np.array(row[part].split(), float) for part in ("steps", "values")] for row in rows if row["tag"] == tag]
    first, last = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    at = curves[0][0][(curves[0][0] >= first) & (curves[0][0] <= last)]
    return at, np.stack([values[np.searchsorted(steps, at, "right") - 1] for steps, values in curves])


def curve_figure(panels: list[tuple], path: Path, columns: int = 2) -> None:
    """Means and intervals: a panel is its title, label of the y axis, tag, and rows of curves by method."""
    rows = -(-len(panels) // columns)
    size = (max(6.4, 2.5 * columns), 2.3 * rows + 0.7)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    lines = {}
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (title, label, tag, curves) in zip(axes.flat, panels, strict=False):
        for method, runs in curves.items():
            if any(run["tag"] == tag for run in runs):
                (name, color, style), (steps, values) = METHODS[method], curve_matrix(runs, tag)
                (lines[name],) = axis.plot(steps, values.mean(0), color=color, linestyle=style)
                axis.fill_between(steps, *bootstrap_interval(values, 500), color=color, alpha=0.12, linewidth=0)
        axis.set(title=title, ylabel=label, xlabel="environment steps")
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=3)
    save(figure, path)


# ----------------------------------------------------------------------------------------------------- Mountain Car


def mountaincar(args: Args) -> None:
    results, curves = (read_groups(args.results, f"mountaincar{end}") for end in ("", "_curves"))
    rest = ("ppo", "pts-no-reward", "pts-be-eig-gp", "pts-be-eig-dk")  # of the second row of panels, beside PTS-BE
    panels = []
    for second in (False, True):
        for noise, title in NOISES.items():
            found = {k: v for k, v in of(curves, noise).items() if k in OURS or (k in rest) == second}
            panels.append((title, "coverage", "charts/coverage", found))
    curve_figure(panels, args.figures / "mountaincar.png")
    text = []
    for noise, title in NOISES.items():
        rows = []
        for label, runs in of(results, noise).items():
            seen = mean((100 * float(run["position_range"]) for run in runs), 0)
            first = mean((float(run["first_return"]) for run in runs), 0)
            measures = {"coverage, %": coverage(runs), "range of positions, %": seen, "first return": first}
            rows.append(describe(label, runs) | measures | {"s / 1000 steps": seconds(runs)})
        text += [f"\n**{title}**\n", *table(rows)]
    insert(args.pages / "benchmark" / "mountaincar.md", "mountaincar", text)


def mountaincar_measures(args: Args) -> None:
    curves = read_groups(args.results, "mountaincar_measures_curves")
    tags = {"bonus/error": "prediction error", "bonus/entropy": "entropy, nats", "bonus/eig": "EIG, nats"}
    panels = [("", title, tag, {noise: curves[noise] for noise in NOISES}) for tag, title in tags.items()]
    curve_figure(panels, args.figures / "mountaincar_measures.png", columns=3)
    rows = []
    for tag, title in tags.items():
        for noise in NOISES:
            values = curve_matrix(curves[noise], tag)[1].mean(0)
            cells = {"peak": values.max(), "mean of the last quarter": values[-len(values) // 4 :].mean()}
            rows.append({"measure": title, "noise": noise} | {name: f"{value:.3g}" for name, value in cells.items()})
    insert(args.pages / "benchmark" / "mountaincar.md", "mountaincar_measures", table(rows))


# ---------------------------------------------------------------------------------------------------------- the chain


def steps_sooner(rows: Rows, others: Rows) -> str:
    """How many steps sooner the last state is reached than by others with the same seed, with its interval."""
    ours, theirs = ({row["seed"]: int(row["solved_step"] or row["steps"]) for row in part} for part in (rows, others))
    return mean((theirs[seed] - ours[seed] for seed in sorted(ours.keys() & theirs.keys(), key=int)), 0)


def unichain(args: Args) -> None:
    results = read_groups(args.results, "unichain", "unichain_swap")
    curves = read_groups(args.results, "unichain_curves", "unichain_swap_curves")
    rest, labels = ("be-error", "pts"), {"charts/coverage": "coverage", "charts/cumulative_reward": "reward so far"}
    panels = [
        (CHAINS[chain], label, tag, {k: v for k, v in of(curves, chain).items() if k not in rest})
        for tag, label in labels.items()
        for chain in ("L50", "L100")
    ]
    curve_figure(panels, args.figures / "unichain.png")
    controls = {k: v for k, v in of(curves, "L100").items() if k in (*rest, *OURS, "random")}
    noisy = {k: v for k, v in of(curves, "L50-noisy").items() if k not in rest}
    panels = [("100 states", "coverage", "charts/coverage", controls)]
    panels += [("50 states, noisy", "coverage", "charts/coverage", noisy)]
    curve_figure(panels, args.figures / "unichain_more.png")
    text = []
    others = {chain: chain for chain in (label.partition("/")[2] for label in results) if chain not in CHAINS}
    for chain, title in (CHAINS | others).items():
        found, rows = of(results, chain), []
        ours = next((found[label] for label in OURS if label in found), None)
        for label, runs in found.items():
            reward = mean((float(run["episodic_return"]) for run in runs), 1)
            same = ours is not None and label.startswith("pts-be-") and runs is not ours
            sooner = {"steps sooner than PTS-BE": steps_sooner(runs, ours) if same else ""}
            rows.append(describe(label, runs) | {"coverage, %": coverage(runs), "reward": reward} | sooner)
        text += [f"\n**{title}**\n", *table(rows)] if rows else []
    insert(args.pages / "benchmark" / "unichain.md", "unichain", text)


# -------------------------------------------------------------------------------------------------------- point mazes

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


def maze_ablations(results: dict[str, Rows]) -> list[str]:
    """PTS-BE without one of its parts, each row with the log-rank test against PTS-BE on the same seeds."""
    labels = list(MAZE_ABLATIONS)[2:]
    mazes = {key: name for key, name in MAZES.items() if any(f"{label}/{key}" in results for label in labels)}
    seeds = {row["seed"] for key in mazes for label in labels for row in results.get(f"{label}/{key}", [])}
    rows = []
    for label, name in MAZE_ABLATIONS.items():
        cells = {f"{len(seeds)} seeds": name}
        for key, title in mazes.items():
            runs = [row for row in results.get(f"{label}/{key}", []) if row["seed"] in seeds]
            paired = {row["seed"] for row in runs}
            whole = arrivals([row for row in results[f"pts-be/{key}"] if row["seed"] in paired])
            steps, reached = arrivals(runs)
            p = "" if label == "pts-be" or not runs else p_value(log_rank(*whole, steps, reached))
            cells |= {f"{title}: reached": f"{reached.sum()}/{len(runs)}" if runs else ""}
            cells |= {f"{title}: mean steps": f"{steps.mean():.0f}" if runs else "", f"{title}: p": p}
        rows.append(cells)
    return table(rows) if mazes else []


def maze(args: Args) -> None:
    results = read_groups(args.results, "maze", "maze_models", "maze_ablations")
    figure, axes = plt.subplots(2, 2, figsize=(6.4, 5.6), sharex=True, sharey=True, layout="constrained")
    lines, text = {}, []
    for axis, (key, title) in zip(axes.flat, MAZES.items(), strict=True):
        found, rows = of(results, key), []
        for label, runs in found.items():
            ours, other = arrivals(found.get("pts-be", runs)), arrivals(runs)
            name, color, style = METHODS[label]
            at = np.arange(max(int(run["total_timesteps"]) for run in runs) + 1)
            (lines[name],) = axis.plot(at, reached_by(*other, at), color=color, linestyle=style)
            ratio, p = f"{ours[0].mean() / other[0].mean():.2f}", p_value(log_rank(*ours, *other))
            against = {"PTS-BE's mean to it": ratio, "p": p}
            against = against if label != "pts-be" else dict.fromkeys(against, "")
            rows.append(describe(label, runs) | against | {"s / 1000 steps": seconds(runs)})
        text += [f"\n**{title}**\n", *table(rows)] if rows else []
        axis.set(title=title, ylim=(-0.02, 1.02))
    for axis in axes[1]:
        axis.set_xlabel("environment steps, t")
    figure.supylabel("probability of having arrived by t", fontsize=11)
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4)
    save(figure, args.figures / "maze.png")
    insert(args.pages / "benchmark" / "maze.md", "maze", text)
    insert(args.pages / "benchmark" / "maze.md", "maze_ablations", maze_ablations(results))
    maze_visits(args, read_groups(args.results, "maze_curves"))


def maze_visits(args: Args, curves: dict[str, Rows]) -> None:
    """Where the runs were: for each maze and the paper's four methods, mean steps that a run spent in each square."""
    from ptsbe_sac_maze import MAZES as MAPS
    from ptsbe_sac_maze import Visits, parse_map

    places, methods = {key: Visits(key, parse_map(MAPS[key])) for key in MAZES}, ("sac", "be", "pts", "pts-be")
    heights = {"height_ratios": [place.size[1] / place.size[0] for place in places.values()]}
    figure, axes = plt.subplots(4, 4, figsize=(6.4, 7.4), layout="constrained", gridspec_kw=heights)
    for row, (key, place) in zip(axes, places.items(), strict=True):
        for axis, label in zip(row, methods, strict=True):
            runs = [run for run in curves.get(f"{label}/{key}", []) if run["tag"] == "visits"]
            visits = np.zeros(place.free.shape)
            for run in runs:
                squares = np.array([square.split(":") for square in run["steps"].split()], dtype=int)  # (n, 2)
                visits[squares[:, 1], squares[:, 0]] += np.array(run["values"].split(), float)
            seen = np.where(visits > 0, visits / max(len(runs), 1), np.nan)
            extent = (0, place.size[0], place.size[1], 0)
            axis.imshow(np.where(place.free, 1.0, 0.35), cmap="gray", vmin=0, vmax=1, extent=extent)
            axis.imshow(seen, cmap="YlOrRd", norm=matplotlib.colors.LogNorm(0.05, 50), extent=extent)
            axis.plot(*place.start, "o", color="#5b6f95", markersize=5)
            axis.plot(*place.goal, "*", color="#2a9d5c", markersize=9)
            axis.set(xticks=[], yticks=[], title=METHODS[label][0] if key == next(iter(MAZES)) else None)
        row[0].set_ylabel(MAZES[key])
    label = "steps that a run spent in a square of 0.25 m, mean over seeds"
    figure.colorbar(axes[0, 0].images[-1], ax=axes, location="bottom", label=label, aspect=50, shrink=0.8)
    save(figure, args.figures / "maze_visits.png")


# ---------------------------------------------------------------------------------------------------------- ant mazes


def value_at(rows: Rows, tag: str, step: int) -> dict[str, float]:
    """What each seed had logged last by a step; rows are curves."""
    found = {}
    for row in rows:
        if row["tag"] == tag:
            steps, values = (np.array(row[part].split(), float) for part in ("steps", "values"))
            found[row["seed"]] = float(values[np.searchsorted(steps, step, "right") - 1])
    return found


def ant_model(results: Path) -> list[str]:
    """What `ant_model.py` measured: R^2 of the model, means over seeds, and the speed of every run."""
    rows = read(results / "ant_model.csv")
    moments = sorted({int(row["steps"]) for row in rows})
    columns = {"velocity_1": "velocity change", "position_3": "position after 0.45 s", "eig": "EIG, nats"}
    lines = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        runs = [row for row in rows if row["variant"] == variant]
        cells = {f"mean of {len({row['seed'] for row in rows})} seeds": variant}
        for column, title in columns.items():
            for moment in moments:
                values = [float(row[column]) for row in runs if int(row["steps"]) == moment]
                cells[f"{title}, {moment // 1000}k"] = f"{np.mean(values):.2g}"
        lines.append(cells)
    names = {"seed": "seed", "speed_2000_6000": "steps 2000 to 6000", "speed_6000_12000": "steps 6000 to 12,000"}
    speeds = [{title: row[name] for name, title in names.items()} for row in read(results / "ant_direction.csv")]
    return [*table(lines), "\nSpeed in a commanded direction, m/s:\n", *table(speeds)]


def ant_values(results: Path) -> list[str]:
    """What `ant_values.py` measured, a row for each variant."""
    rows = read(results / "ant_values.csv")
    lines = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        found = {row["seed"]: row["gain"] for row in rows if row["variant"] == variant}
        mean = np.mean([float(value) for value in found.values()])
        lines.append(
            {"gain": variant} | {f"seed {seed}": value for seed, value in found.items()} | {"mean": f"{mean:.2f}"}
        )
    return table(lines)


def antmaze(args: Args) -> None:
    results, curves = (read_groups(args.results, f"antmaze{end}", f"antmaze_models{end}") for end in ("", "_curves"))
    tags = {"charts/coverage": "coverage", "charts/min_distance": "closest to goal, m"}
    panels = [(name, label, tag, of(curves, key)) for key, name in ANTMAZES.items() for tag, label in tags.items()]
    curve_figure(panels, args.figures / "antmaze.png")
    text = []
    for key, title in ANTMAZES.items():
        found, rows = of(results, key), []
        for label, runs in found.items():
            logged, planned = (curves.get(f"{method}/{key}", []) for method in (label, "pts-be"))
            cells = {name: cell for name, cell in describe(label, runs).items() if not name.startswith("median")}
            for moment in (5000, 10_000, int(runs[0]["total_timesteps"])):
                covered = value_at(logged, "charts/coverage", moment)
                cells[f"coverage at {moment // 1000}k"] = f"{np.mean(list(covered.values())):.2f}"
            ours, theirs = (value_at(part, "charts/coverage", 10_000) for part in (planned, logged))
            several = label != "pts-be" and len(ours.keys() & theirs.keys()) > 2
            cells["PTS-BE's at 10k to it"] = ratio_of_means(ours, theirs) if several else ""
            cells["smallest distance, m"] = f"{np.mean([float(run['min_distance']) for run in runs]):.1f}"
            cells["on its back"] = f"{np.mean([float(run['on_back']) for run in runs]):.2f}"
            rows.append(cells | {"s / 1000 steps": seconds(runs)})
        text += [f"\n**{title}**\n", *table(rows)] if rows else []
    insert(args.pages / "benchmark" / "antmaze.md", "antmaze", text)
    if (args.results / "ant_model.csv").exists():
        insert(args.pages / "benchmark" / "antmaze.md", "ant_model", ant_model(args.results))
    if (args.results / "ant_values.csv").exists():
        insert(args.pages / "benchmark" / "antmaze.md", "ant_values", ant_values(args.results))


# ------------------------------------------------------------------------------------------------- continuous actions


def continuous_action(args: Args) -> None:
    results, curves = (read_groups(args.results, f"continuous_action{end}") for end in ("", "_curves"))
    tag, text, panels = "charts/eval_return", [], []
    for task, title in (SPARSE | {"pendulum": "Pendulum-v1, which pays everywhere"}).items():
        rows = []
        for label, runs in of(results, task).items():
            cells = describe(label, runs) if task in SPARSE else {"method": METHODS[label][0], "runs": str(len(runs))}
            for name, column in (("episodic_return", "reward in all"), ("eval_return", "evaluation return")):
                if all(run.get(name) for run in runs):
                    cells[column] = mean((float(run[name]) for run in runs), 1)
            rows.append(cells | {"s / 1000 steps": seconds(runs)})
        panels.append((title.partition(",")[0], "evaluation return", tag, of(curves, task)))
        text += [f"\n**{title}**\n", *table(rows)]
    curve_figure(panels, args.figures / "continuous_action.png", columns=min(2, len(panels)))
    insert(args.pages / "benchmark" / "continuous_action.md", "continuous_action", text)


# --------------------------------------------------------------------------------------- tables that need no figure

REGIONS = {  # of regression_1d.py
    "noisy middle": lambda x: abs(x) < 0.5,
    "quiet": lambda x: (abs(x) > 1.25) & (abs(x) < 2.75),
    "gap": lambda x: (x > 3.5) & (x < 4.5),
}


def regression(args: Args) -> None:
    """Tables of what regression_1d.py and eig_estimators.py left; they draw their figures themselves."""
    page, rows = args.pages / "benchmark" / "regression.md", []
    for noise in NOISES:
        curve = [row for row in read(args.results / "regression_noise.csv") if row["noise"] == noise]
        x = np.array([float(row["x"]) for row in curve])
        for measure, name in (("eig", "EIG, nats"), ("entropy", "entropy, nats")):
            values = np.array([float(row[measure]) for row in curve])
            means = {region: f"{values[inside(x)].mean():.3f}" for region, inside in REGIONS.items()}
            rows.append({"noise": noise, "measure": name} | means)
    insert(page, "regression_noise", table(rows))
    names = {"train_seconds": "training, s", "held_out_nll": "held-out NLL", "coverage_95": "in the 95 % band"}
    names |= {"gap_nll": "NLL in the gap", "gap_coverage_95": "in the band, in the gap"}
    rows = [
        {"model": row["model"]} | {title: f"{float(row[name]):.2f}" for name, title in names.items()}
        for row in read(args.results / "regression_models_summary.csv")
    ]
    insert(page, "regression_models", table(rows))
    rows, decay = [], read(args.results / "regression_decay.csv")
    for kernel, (name, smoothness) in {"matern32": ("Matérn 3/2", 1.5), "matern52": ("Matérn 5/2", 2.5)}.items():
        curve = [row for row in decay if row["kernel"] == kernel]
        later, cells, rate = curve[len(curve) // 2 :], {"prior": name}, 1 / (2 + 1 / smoothness)
        for sampling, title in (("random", "random sampling"), ("active", "where EIG is largest")):
            points = np.log([[float(row["n"]), float(row[f"eig_{sampling}"])] for row in later]).T
            cells[title] = f"{np.polyfit(*points, 1)[0]:.2f}"
        rows.append(cells | {"minimax rate": f"{-rate:.2f}", "its square": f"{-2 * rate:.2f}"})
    insert(page, "regression_decay", table(rows))
    insert(page, "eig_estimators", table(read(args.results / "eig_estimators.csv")))


def plain(page: str, *names: str) -> Callable[[Args], None]:
    """Tables that are CSV files as they stand."""

    def show(args: Args) -> None:
        for name in names:
            insert(args.pages / "benchmark" / page, name, table(read(args.results / f"{name}.csv")))

    return show


PLOTS = {"mountaincar": mountaincar, "mountaincar_measures": mountaincar_measures, "unichain": unichain}
PLOTS |= {"maze": maze, "antmaze": antmaze, "continuous_action": continuous_action, "regression": regression}
PLOTS |= {"speed": plain("speed.md", "speed", "speed_runs"), "peers": plain("peers.md", "peers_mazes", "peers_cost")}
NEEDS = {"regression": "regression_noise", "peers": "peers_mazes"}  # of the others, the file of their name


def overview(args: Args) -> list[str]:
    """The table of README.md: runs that arrived and their mean steps, over all environments of a script."""
    rows = []
    for experiment, (script, goal, environments, paper) in OVERVIEW.items():
        if not (args.results / f"{experiment}.csv").exists():
            continue
        results, found = read_groups(args.results, experiment), defaultdict(list)
        for environment in environments:
            for label, runs in of(results, environment).items():
                found[label].append(arrivals(runs))  # a method's steps and arrivals in each environment
        rank = {}  # methods that were in all of them: minus the share that arrived, mean steps
        for label, parts in found.items():
            if len(parts) == len(environments):
                rank[label] = -np.mean([reached.mean() for _, reached in parts]), np.mean([s.mean() for s, _ in parts])
        ours = next((label for label in OURS if label in rank), "")
        others = [label for label in rank if not label.startswith(ours.removesuffix("-de"))]
        if not ours or not others:
            continue
        cells = []
        for label in (ours, min(others, key=rank.get)):
            reached = np.concatenate([reached for _, reached in found[label]])
            cells.append(f"{reached.sum()}/{len(reached)}, {rank[label][1]:.0f} steps")
        best = f"{METHODS[label][0]}: {cells[1]}"
        link = f"[{goal}](benchmark/{experiment}.md)"
        row = {"script": f"[`{script}`]({script})", "goal": link, "PTS-BE": cells[0], "best other": best}
        rows.append(row | {"the paper's PTS-BE": paper})
    return table(rows)


def index(args: Args) -> list[str]:
    """The table of benchmark/README.md: how many runs each sweep has, of which seeds and commits."""
    rows = []
    for path in sorted(args.results.glob("*.csv")):
        runs = read(path)
        if runs and {"label", "seed", "git_commit"} <= runs[0].keys():
            seeds = sorted({int(run["seed"]) for run in runs})
            commits = ", ".join(sorted({run["git_commit"][:7] for run in runs}))
            cells = {"runs": str(len(runs)), "seeds": f"{seeds[0]} to {seeds[-1]}", "commit": commits}
            rows.append({"sweep": f"[{path.stem}](results/{path.name})"} | cells)
    return table(rows)


def main(args: Args) -> None:
    if args.experiment not in (*PLOTS, "all"):
        print(f"error: no plot for {args.experiment!r}: choose from all, {', '.join(PLOTS)}", file=sys.stderr)
        raise SystemExit(2)
    for name, plot in PLOTS.items():
        there = (args.results / f"{NEEDS.get(name, name)}.csv").exists()
        if args.experiment == name or (args.experiment == "all" and there):
            plot(args)
            print(name)
    insert(args.pages / "README.md", "overview", overview(args))
    insert(args.pages / "benchmark" / "README.md", "index", index(args))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
