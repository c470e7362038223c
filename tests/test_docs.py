"""The pages: every command is run, every link leads somewhere, every table is what the results give.

Commands are run as they are written, in an empty folder, with these changes that make them short:
- environments and installations are not made anew, the files of requirements must exist; pytest is not run in itself;
- runs get `--total-timesteps`, sweeps take one variant and one seed and write to the empty folder;
- `plot.py` and `ladder.py` write to copies of the pages, and that nothing changes there is the test of the tables;
- the studies of `benchmark/` get small sizes (SMALL).
"""

import ast
import importlib.util
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import eig_estimators
import ladder
import plot
import pytest
import sweep
import torch
import tyro
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ptsbe_sac_maze

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "benchmark").glob("*.md"))]
PAGES = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
STEPS = {
    "ptsbe_sac_maze.py": 130,
    "ptsbe_sac_continuous_action.py": 210,
    "ptsbe_ppo_mountaincar.py": 70,
}  # beyond the warm-up; of others 30
SMALL = {
    "teaser.py": "--total-timesteps 160 --frames 2 --output teaser.gif",
    "ant_model.py": "--steps 100 --seeds 1001 --test-episodes 1 --results .",
    "ant_values.py": "--steps 300 --seeds 1001 --plannings 1 --starts 5 --results . --figures .",
}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.M | re.S)


def commands() -> list[str]:
    """Every command of a page, once, also those in its tables and sentences."""
    found = []
    for page in PAGES:
        lines = [line.partition("  # ")[0] for block in blocks(page, "bash") for line in block.splitlines()]
        lines += re.findall(r"`(python [^`]*\.py[^`]*)`", PAGES[page])
        found += [command.strip() for line in lines for command in line.split(" && ")]
    return list(dict.fromkeys(found))


@pytest.fixture
def pages(tmp_path):
    """A copy of the pages."""
    for name, text in PAGES.items():
        (tmp_path / "pages" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pages" / name).write_text(text)
    return tmp_path / "pages"


def losses_of(folder: Path) -> dict[str, list[float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [e.value for e in events.Scalars(tag)] for tag in events.Tags()["scalars"] if "losses" in tag}


def run_sweep(name: str, *flags: str) -> None:
    args = tyro.cli(sweep.Args, args=[name, *flags, "--results", "results", "--workdir", ".", "--seeds", "1001"])
    args.only, args.flags = next(iter(sweep.EXPERIMENTS[name].variants)), "--total-timesteps 30"
    assert sweep.main(args) == 0 and Path("results", f"{name}.csv").exists()


def run_python(monkeypatch, file: str, *flags: str) -> None:
    script = Path(file).name
    if "--help" not in flags:
        if file.startswith("benchmark/"):
            flags += tuple(SMALL.get(script, "").split())
        else:
            flags += "--total-timesteps", str(STEPS.get(script, 30))
    monkeypatch.setattr(sys, "argv", [script, *flags])
    monkeypatch.syspath_prepend(str((ROOT / file).parent))
    try:
        runpy.run_path(str(ROOT / file), run_name="__main__")
    except SystemExit as end:
        assert not end.code


@pytest.mark.parametrize("command", commands())
def test_command(in_tmp, monkeypatch, command):
    words = shlex.split(command)
    if "venv" in command or "pip install" in command or "pytest" in command:
        assert all((ROOT / word).exists() for word in words if word.endswith(".txt"))
    elif words[0] == "tensorboard":
        assert importlib.util.find_spec("tensorboard.main")
    elif words[0] == "printf":
        subprocess.run(command, shell=True, check=True)
        run_python(monkeypatch, "ptsbe_sac_maze.py", "--maze", words[-1])
    elif words[1] == "benchmark/sweep.py":
        run_sweep(*words[2:])
    elif words[1] == "benchmark/plot.py":  # run on a copy of the pages, below
        assert not words[2:] or words[2] in plot.PLOTS
    elif words[1] in ("benchmark/ladder.py", "benchmark/speed.py", "benchmark/eig_estimators.py"):
        pass  # below
    elif words[1] == "benchmark/regression_1d.py":
        pass  # test_regression_1d.py
    elif "my-maze.txt" in words:
        pass  # with the map, above
    elif words[1:3] == ["benchmark/ant_model.py", "direction"]:
        assert (ROOT / words[1]).exists()  # it has no flag for shorter runs
    else:
        assert words[0] == "python"
        run_python(monkeypatch, *words[1:])


def test_eig_estimators(in_tmp, monkeypatch):
    monkeypatch.setattr(eig_estimators, "ROOT", in_tmp)
    monkeypatch.setattr(eig_estimators, "SPREADS", (0.1, 1.0))
    monkeypatch.setattr(eig_estimators, "DRAWS", 5)
    Path("benchmark", "results").mkdir(parents=True)
    eig_estimators.main()
    rows = plot.read(Path("benchmark/results/eig_estimators.csv"))
    committed = plot.read(ROOT / "benchmark" / "results" / "eig_estimators.csv")
    assert [next(iter(row.values())) for row in rows] == [next(iter(row.values())) for row in committed]


def test_speed(in_tmp, monkeypatch):
    import speed

    compare = speed.compare
    monkeypatch.setattr(speed, "compare", lambda ours, theirs, **_: compare(ours, theirs, rounds=2, calls=1))
    monkeypatch.setattr(speed, "run_cost", lambda *_: ([1.0, 2.0, 3.0], Counter(model=1.0)))
    monkeypatch.setattr(speed, "ROOT", in_tmp)
    Path("benchmark", "results").mkdir(parents=True)
    speed.main()
    for name in ("speed", "speed_runs"):
        rows, committed = (plot.read(root / "benchmark" / "results" / f"{name}.csv") for root in (in_tmp, ROOT))
        assert [next(iter(row.values())) for row in rows] == [next(iter(row.values())) for row in committed]


def test_tables_are_those_of_the_results_and_the_sources(tmp_path, pages):
    plot.main(plot.Args(figures=tmp_path / "figures", pages=pages))
    ladder.main(ladder.Args(pages=pages))
    for name, text in PAGES.items():
        assert (pages / name).read_text() == text, f"{name}: run benchmark/plot.py and benchmark/ladder.py"
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn <= {path.name for path in (ROOT / "benchmark" / "figures").iterdir()}


@pytest.mark.parametrize("method", ladder.RUNGS)
def test_a_rung_of_the_ladder_is_the_method(in_tmp, method):
    """`main` as the ladder has it for a method does what `main` does."""
    lines = ladder.specialise(ladder.definitions(ladder.MAZE)["main"], method)
    assert "args.method" not in "\n".join(lines) and "plans" not in "\n".join(lines)
    found = dict(vars(ptsbe_sac_maze))
    exec("\n".join(["def main(args):", *lines]), found)
    results = []
    for name, main in (("whole", ptsbe_sac_maze.main), ("rung", found["main"])):
        result = main(ptsbe_sac_maze.parse(["--method", method, "--total-timesteps", "160", "--run-name", name]))
        losses = losses_of(in_tmp / "runs" / name)
        results.append({key: result[key] for key in ("steps", "coverage", "min_distance")} | losses)
    assert results[0] == results[1]


def test_every_marker_is_filled_and_closed():
    for name, text in PAGES.items():
        tables = re.findall(r"<!-- table: [^\n]*-->\n(.*?)<!-- (.*?) -->", text, re.S)
        assert len(tables) == text.count("<!-- table:"), name
        assert all("|" in lines and end == "end" for lines, end in tables), name


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    """Files exist, and a link on a `name` leads to a file that defines it."""
    text = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.M | re.S)
    for label, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path = (ROOT / page).parent / target
        assert path.exists(), f"{page}: {target}"
        if target.endswith(".py") and label.startswith("`") and label != f"`{path.name}`":
            tree = ast.parse(path.read_text())
            names = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
            names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            assert label.strip("`") in names, f"{page}: {label} is not in {target}"


def test_every_figure_is_shown():
    shown = {Path(target).name for text in PAGES.values() for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)}
    assert shown == {path.name for path in (ROOT / "benchmark" / "figures").iterdir()}


def test_readme_is_short():
    text = re.sub(r"^```.*?^```|<!--.*?-->|^\|.*?$", "", PAGES["README.md"], flags=re.M | re.S)
    assert len(re.sub(r"\]\([^)]*\)", "]", text).split()) <= 650
    assert (ROOT / "benchmark" / "figures" / "teaser.gif").stat().st_size < 3e6


def test_lines_of_algorithm_1_are_where_the_readme_says():
    rows = re.findall(r"^\| [\d, to]+ \| .* \| `(.*)` \|$", PAGES["README.md"], re.M)
    assert len(rows) == 8
    for script in ROOT.glob("ptsbe_sac_*.py"):
        main = script.read_text().partition("\ndef main(")[2]
        assert all(code in main for code in rows), script.name


def test_a_bonus_of_ones_own(in_tmp, monkeypatch):
    """The diff of the README, applied to a copy of the maze script."""
    source, above = (ROOT / "ptsbe_sac_maze.py").read_text(), ""
    for line in blocks("README.md", "diff")[0].splitlines():
        if line[0] in " -":
            above = line[1:] + "\n"
            assert source.count(above) == 1
        if line[0] == "+":
            source = source.replace(
                above, line[1:] + "\n" if above.startswith("    bonus:") else above + line[1:] + "\n"
            )
    Path("copy.py").write_text(source)
    shutil.copy(ROOT / "gp_models.py", "gp_models.py")
    monkeypatch.setattr(sys, "argv", ["copy.py", "--total-timesteps", "130", "--run-name", "mine"])
    runpy.run_path("copy.py", run_name="__main__")
    assert '"bonus": "std"' in Path("runs/mine/result.json").read_text()


def test_loading_a_model(in_tmp, monkeypatch):
    run_python(monkeypatch, "ptsbe_sac_maze.py", "--run-name", "my-run", "--save-model")
    found = {}
    exec(blocks("README.md", "python")[0], found)
    assert found["policy"].act(torch.zeros(1, 4), spread=False)[0].shape == (1, 2)
