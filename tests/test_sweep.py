"""The sweep on real runs: resume, failure, interruption; and the plots from what it left."""

import csv
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import plot
import pytest
import sweep
from experiments import NOISES, Experiment

SCRIPT = "ptsbe_ppo_mountaincar.py"
TINY = {
    f"{label}/{noise}": f"--method random --total-timesteps 60 --noise {noise}"
    for label in ("random", "pts-be-eig")
    for noise in NOISES
}


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def tiny(monkeypatch):
    def register(variants, seeds=(1001, 1002), curves=("charts/coverage",), every=20):
        monkeypatch.setitem(sweep.EXPERIMENTS, "tiny", Experiment(SCRIPT, variants, seeds, curves, every))

    return register


@pytest.fixture
def pages(tmp_path):
    """A copy of the pages that hold tables."""
    for page in ("README.md", "benchmark/README.md", "benchmark/mountaincar.md", "benchmark/maze.md"):
        (tmp_path / "pages" / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sweep.ROOT / page, tmp_path / "pages" / page)
    return tmp_path / "pages"


def arguments(folder, **changes):
    return sweep.Args(experiment="tiny", results=folder / "results", workdir=folder, **changes)


def test_sweep_collects_rows_and_curves_and_skips_what_is_finished(tmp_path, tiny, capsys):
    tiny({"random": "--method random --total-timesteps 60"})
    assert sweep.main(arguments(tmp_path)) == 0
    table, curves = rows(tmp_path / "results" / "tiny.csv"), rows(tmp_path / "results" / "tiny_curves.csv")
    assert [(row["label"], row["seed"], row["steps"]) for row in table] == [
        ("random", "1001", "60"),
        ("random", "1002", "60"),
    ]
    assert curves[0]["steps"] == "20 40 60" and len(curves[0]["values"].split()) == 3
    directory = tmp_path / "runs" / "tiny" / "random__1001"
    assert directory.with_suffix(".log").read_text().count("goal") == 1
    assert all(row["git_commit"] and row["version_torch"] for row in table)
    before = (directory / "result.json").stat().st_mtime_ns
    capsys.readouterr()
    assert sweep.main(arguments(tmp_path)) == 0
    assert (directory / "result.json").stat().st_mtime_ns == before
    assert "2 of 2 runs finished" in capsys.readouterr().err

    tiny({"random": "--method random"})  # other flags: another run
    sweep.main(arguments(tmp_path, flags="--total-timesteps 80"))
    assert sorted(row["steps"] for row in rows(tmp_path / "results" / "tiny.csv")) == ["60", "60", "80", "80"]


def test_a_failed_run_is_reported_with_its_log_and_stops_nothing(tmp_path, tiny, capsys):
    tiny({"bad": "--method pts-be --bonus error", "good": "--method random --total-timesteps 20"}, seeds=(1001,))
    assert sweep.main(arguments(tmp_path)) == 1
    error = capsys.readouterr().err
    log = tmp_path / "runs" / "tiny" / "bad__1001.log"
    assert f"failed: bad, seed 1001: exit status 2, see {log}" in error
    assert "needs the real next state" in log.read_text()
    assert [row["label"] for row in rows(tmp_path / "results" / "tiny.csv")] == ["good"]


def test_short_runs_that_end_while_others_start(tmp_path):
    """The end of a process is told once; the thread that waits for it must be the one that hears of it."""
    script = tmp_path / "short.py"
    script.write_text("import sys; print(sys.argv[-1])")
    workers = sweep.Workers(tmp_path)
    runs = [sweep.Run("tiny", str(script), "short", "", seed) for seed in range(80)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(workers.execute, runs))
    assert [run.log(tmp_path).read_text() for run in runs] == [f"{run.name}\n" for run in runs]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_sweep_loses_nothing_finished_and_goes_on(tmp_path, tiny, stop):
    root = Path(sweep.__file__).resolve().parent
    variants = {"fast": "--method random --total-timesteps 20", "slow": "--method random --total-timesteps 30000"}
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background shell ignores it
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "import sweep; from experiments import Experiment; from pathlib import Path\n"
        f"sweep.EXPERIMENTS['tiny'] = Experiment({SCRIPT!r}, {variants!r}, (1001,), ('charts/coverage',))\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "sys.exit(sweep.main(sweep.Args('tiny', results=folder / 'results', workdir=folder)))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    table = tmp_path / "results" / "tiny.csv"
    for _ in range(600):
        if table.exists():
            break
        time.sleep(0.1)
    os.kill(process.pid, stop)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "1 of 2 runs are finished" in error
    assert [row["label"] for row in rows(table)] == ["fast"]
    for path in (tmp_path / "runs").rglob("slow__1001/result.json"):  # an interrupted run keeps what it has
        assert json.loads(path.read_text())["interrupted"]

    tiny({**variants, "slow": "--method random --total-timesteps 40"}, seeds=(1001,))
    assert sweep.main(arguments(tmp_path)) == 0
    assert [row["label"] for row in rows(table)] == ["fast", "slow"]


def test_unknown_names_get_one_line_and_status_2(tmp_path, tiny, capsys):
    assert sweep.main(sweep.Args("nothing")) == 2
    assert "no experiment 'nothing': choose from mountaincar" in capsys.readouterr().err
    tiny(TINY)
    assert sweep.main(arguments(tmp_path, only="xyz")) == 2
    with pytest.raises(SystemExit) as stop:
        plot.main(plot.Args("nothing"))
    assert stop.value.code == 2
    with pytest.raises(SystemExit) as stop:
        plot.main(plot.Args("mountaincar", results=tmp_path))
    assert stop.value.code == 2


def test_plots_from_what_the_sweep_left(tmp_path, tiny, pages):
    tiny(TINY, seeds=(1001,))
    assert sweep.main(arguments(tmp_path)) == 0
    for end in (".csv", "_curves.csv"):
        (tmp_path / "results" / f"tiny{end}").rename(tmp_path / "results" / f"mountaincar{end}")
    plot.main(plot.Args("mountaincar", results=tmp_path / "results", figures=tmp_path / "figures", pages=pages))
    assert (tmp_path / "figures" / "mountaincar.png").stat().st_size > 20_000
    table = (pages / "benchmark" / "mountaincar.md").read_text()
    assert "| Random | 0/1 | 60 [60, 60] | > 60 |" in table and "| PTS-BE | 0/1" in table and "| BE |" not in table
    assert "| 0/2, 60 steps | Random: 0/2, 60 steps |" in (pages / "README.md").read_text()
    assert "| 4 | 1001 to 1001 |" in (pages / "benchmark" / "README.md").read_text()


def test_measures_plot(tmp_path, tiny, pages):
    tags = ("bonus/error", "bonus/entropy", "bonus/eig")
    flags = "--method be --eta 0 --total-timesteps 200 --model-updates 3"
    tiny({noise: f"{flags} --noise {noise}" for noise in NOISES}, seeds=(1001,), curves=tags, every=1)
    assert sweep.main(arguments(tmp_path)) == 0
    curves = tmp_path / "results" / "tiny_curves.csv"
    curves.rename(tmp_path / "results" / "mountaincar_measures_curves.csv")
    plot.main(plot.Args("mountaincar_measures", tmp_path / "results", tmp_path / "figures", pages))
    assert (tmp_path / "figures" / "mountaincar_measures.png").stat().st_size > 20_000


def test_a_sweep_of_other_environments_gets_its_table_and_figure(tmp_path):
    """The experiment continuous_action: labels are method/task; the task that pays everywhere has no goal."""
    steps = {"sac": 500, "pts-be": 200}
    for method, solved in steps.items():
        for task, seed in itertools.product((*plot.SPARSE, "pendulum"), (1, 2, 3)):
            name = {"label": f"{method}/{task}", "seed": seed, "flags": ""}
            row = {"solved": solved < 500, "solved_step": solved if solved < 500 else None, "steps": 500}
            row |= {
                "episodic_return": seed,
                "eval_return": 10 * seed,
                "wall_time_s": 1.0,
                "total_timesteps": 500,
                "git_commit": "abc",
            }
            sweep.Table(tmp_path / "continuous_action.csv").add([name | row])
            curve = {"tag": "charts/eval_return", "steps": f"{100 + seed} 200 300", "values": "0 1 2"}
            sweep.Table(tmp_path / "continuous_action_curves.csv").add([name | curve])
    (tmp_path / "benchmark").mkdir()
    for page, marker in (("README.md", "overview"), ("benchmark/continuous_action.md", "continuous_action")):
        (tmp_path / page).write_text(f"before\n<!-- table: {marker} -->\nold\n<!-- end -->\nafter\n")
    plot.main(plot.Args("continuous_action", tmp_path, tmp_path, tmp_path))
    assert (tmp_path / "continuous_action.png").exists()
    page, readme = ((tmp_path / name).read_text() for name in ("benchmark/continuous_action.md", "README.md"))
    assert page.startswith("before\n<!--") and page.endswith("<!-- end -->\nafter\n") and "old" not in page
    assert (
        "**Sparse reacher**" in page
        and "| PTS-BE | 3/3 | 200 [200, 200] | 200 [200, 200] | 2.0 [" in page
        and "| 20.0 [" in page
        and "| PTS-BE | 3 | 2.0 [" in page
    )
    assert "`ptsbe_sac_continuous_action.py`" in readme and "| 9/9, 200 steps | SAC: 0/9, 500 steps |" in readme


def test_bootstrap_interval_covers_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        low, high = plot.bootstrap_interval(rng.normal(size=20), draws=1000)
        hits += low < 0 < high
    assert 0.85 < hits / 200 < 0.98


def test_log_rank_on_a_published_example():
    """Remission in weeks (Freireich et al., 1963): chi-square 16.79, p = 4.17e-5; + marks a censored time."""
    placebo = "1 1 2 2 3 4 4 5 5 8 8 8 8 11 11 12 12 15 17 22 23"
    treated = "6 6 6 6+ 7 9+ 10 10+ 11+ 13 16 17+ 19+ 20+ 22 23 25+ 32+ 32+ 34+ 35+"
    groups = []
    for text in (placebo, treated):
        groups += [np.array([int(t.rstrip("+")) for t in text.split()]), np.array(["+" not in t for t in text.split()])]
    assert plot.log_rank(*groups) == pytest.approx(4.17e-5, rel=0.005)
    assert plot.log_rank(*groups[2:], *groups[:2]) == pytest.approx(4.17e-5, rel=0.005)


def test_log_rank_by_hand():
    """Steps 1, 3 against 2, 4 (cap): observed - expected = 1 - 2/4 + 0 - 1/3 + 1 - 1/2, variance 1/4 + 2/9 + 1/4."""
    p = plot.log_rank(np.array([1, 3]), np.array([True, True]), np.array([2, 4]), np.array([True, False]))
    chi = (1 - 0.5 - 1 / 3 + 1 - 0.5) ** 2 / (0.25 + 2 / 9 + 0.25)
    assert chi == pytest.approx(0.615, abs=1e-3) and p == pytest.approx(0.4328, abs=2e-3)
    same = np.array([3, 5]), np.array([True, False])
    assert plot.log_rank(*same, *same) == 1
    never = np.array([9, 9]), np.array([False, False])
    assert plot.log_rank(*never, *never) == 1


def test_log_rank_keeps_its_level():
    rng = np.random.default_rng(0)
    small = 0
    for _ in range(400):
        first, second = rng.exponential(3000, (2, 20))
        small += plot.log_rank(first.clip(max=5000), first < 5000, second.clip(max=5000), second < 5000) < 0.05
    assert 0.02 < small / 400 < 0.09


def test_probability_of_having_arrived():
    steps, reached = np.array([10, 20, 30, 30]), np.array([True, True, False, False])
    assert plot.reached_by(steps, reached, np.array([0, 9, 10, 19, 20, 30])).tolist() == [0, 0, 0.25, 0.25, 0.5, 0.5]
    censored = plot.reached_by(np.array([5, 10, 20]), np.array([False, True, True]), np.array([10, 20]))
    assert censored.tolist() == [0.5, 1.0]  # the run that was broken off at 5 is not at risk any more
    assert plot.reached_by(steps, np.zeros(4, bool), np.array([30])).tolist() == [0]


def test_maze_figures_from_what_the_sweep_left(tmp_path, monkeypatch, pages):
    variants = {
        f"{label}/{maze}": f"--method random --total-timesteps 60 --maze {maze}"
        for label, maze in [("sac", "open"), ("pts-be", "open"), ("pts-be", "u-shape")]
    }
    tiny = Experiment("ptsbe_sac_maze.py", variants, (1001,), ("charts/coverage", "visits"), 20)
    monkeypatch.setitem(sweep.EXPERIMENTS, "maze", tiny)
    assert sweep.main(sweep.Args("maze", results=tmp_path / "results", workdir=tmp_path)) == 0
    visits = [row for row in rows(tmp_path / "results" / "maze_curves.csv") if row["tag"] == "visits"]
    assert len(visits) == 3
    assert all(sum(map(int, row["values"].split())) == 61 for row in visits)
    plot.main(plot.Args("maze", results=tmp_path / "results", figures=tmp_path / "figures", pages=pages))
    for name in ("maze", "maze_visits"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 20_000
    details = (pages / "benchmark" / "maze.md").read_text()
    assert "**Open**" in details and "| SAC | 0/1 | 60 [60, 60] | > 60 | 1.00 | 1 |" in details
    assert "**Obstacles**" not in details


def test_ablations_are_compared_on_the_same_seeds():
    def runs(*steps: int) -> list[dict[str, str]]:
        return [{"seed": str(i), "solved": "True", "solved_step": str(s), "steps": str(s)} for i, s in enumerate(steps)]

    results = {"pts-be/obstacles": runs(10, 20, 900)}
    assert plot.maze_ablations(results) == []
    results["no-lookahead/obstacles"] = runs(30, 50)  # an unfinished sweep: the other rows are empty
    text = "\n".join(plot.maze_ablations(results))
    assert "| 2 seeds | Obstacles: reached |" in text and "| no prior functions |  |  |  |" in text
    assert "| all of it | 2/2 | 15 |  |" in text and "| no look-ahead | 2/2 | 40 | 0.09" in text


def test_the_help_lists_the_experiments():
    text = subprocess.run([sys.executable, sweep.__file__, "--help"], capture_output=True, text=True).stdout
    assert all(f"  {name} " in text for name in sweep.EXPERIMENTS)


def test_two_sweeps_that_add_to_one_file_lose_nothing(tmp_path):
    first, second = (sweep.Table(tmp_path / "results" / "rows.csv") for _ in range(2))
    for table, seed in ((first, 1), (second, 2), (first, 3)):
        table.add([{"label": "a", "seed": seed, "flags": "", "solved": None}])
    second.add([{"label": "a", "seed": 1, "flags": "", "solved": True, "more": 5}])  # the same run again
    assert [(row["seed"], row["solved"], row["more"]) for row in first.rows()] == [
        ("1", "True", "5"),
        ("2", "", ""),
        ("3", "", ""),
    ]
