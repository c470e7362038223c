"""Run a named experiment, seeds x variants, on local workers of one thread each.

    python benchmark/sweep.py mountaincar                    # goes on where it was, skips what is finished
    python benchmark/sweep.py mountaincar --seeds 1001 1002 --only pts-be --results tuning

Every finished run adds a row to `benchmark/results/<experiment>.csv` (its flags and its `result.json`), and its curves
and the visited squares of its maze to `benchmark/results/<experiment>_curves.csv`. Both files are replaced atomically,
so an interruption loses only the runs that were under way. A failed run is reported with its log and does not stop the
others.
"""

import bisect
import csv
import fcntl
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib import metadata
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from experiments import EXPERIMENTS, Experiment
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Args:
    experiment: Annotated[str, tyro.conf.Positional]
    """name of the experiment, one of those above"""
    workers: int = 2
    """runs at the same time"""
    seeds: tuple[int, ...] = ()
    """these seeds instead of the experiment's own"""
    only: str = ""
    """only the variants whose label contains this text"""
    flags: str = ""
    """further flags for every run, for tuning"""
    results: Path = ROOT / "benchmark" / "results"
    """folder of the CSV files"""
    workdir: Path = ROOT
    """folder in which the runs leave `runs/`"""


@dataclass(frozen=True)
class Run:
    experiment: str
    script: str
    label: str
    flags: str
    seed: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.label, str(self.seed), self.flags

    @property
    def name(self) -> str:
        return f"{self.experiment}/{self.label.replace('/', '__')}__{self.seed}"

    def log(self, workdir: Path) -> Path:
        return workdir / "runs" / f"{self.name}.log"


def key(row: dict[str, str]) -> tuple[str, str, str]:
    return row["label"], row["seed"], row["flags"]


@dataclass
class Table:
    """A CSV file that is replaced atomically whenever rows are added; several sweeps may add to it."""

    path: Path

    def rows(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def add(self, new: list[dict]) -> None:
        """Add the rows of a run, in the place of those it may have left before."""
        new = [{name: "" if value is None else str(value) for name, value in row.items()} for row in new]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # another sweep waits here until this one has replaced the file
            rows = [row for row in self.rows() if key(row) not in map(key, new)] + new
            rows.sort(key=lambda row: (row["label"], int(row["seed"])))
            columns = list(dict.fromkeys(name for row in rows for name in row))
            temporary = self.path.with_suffix(".tmp")
            with temporary.open("w", newline="") as file:
                writer = csv.DictWriter(file, columns, lineterminator="\n", restval="")
                writer.writeheader()
                writer.writerows(rows)
            os.replace(temporary, self.path)
        finally:
            os.close(folder)


def run_script(script: Path, flags: list[str], workdir: Path, log: Path) -> None:
    """The command `python script flags`, in a process that has imported torch already."""
    os.setsid()  # an interruption reaches the sweep alone, which then ends its runs
    os.chdir(workdir)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.argv = [str(script), *flags]
    sys.path[0] = str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


class Workers:
    """Runs as processes of their own, so that an interruption can end them.

    They are forked by a server that imports torch once, which takes longer than a short run.
    """

    PRELOAD = ("torch", "torch._dynamo", "torch.utils.tensorboard", "gymnasium", "tyro")

    def __init__(self, workdir: Path):
        self.workdir = workdir
        self.processes: set[BaseProcess] = set()
        self.lock = threading.Lock()
        self.stopped = False
        os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.server = get_context("forkserver")
        self.server.set_forkserver_preload(["__main__", *self.PRELOAD])

    def execute(self, run: Run) -> None:
        directory = self.workdir / "runs" / run.name
        if directory.exists():
            shutil.rmtree(directory)  # left by an interrupted run: its events must not mix with the new ones
        directory.parent.mkdir(parents=True, exist_ok=True)
        flags = [*run.flags.split(), "--seed", str(run.seed), "--run-name", run.name]
        process = self.server.Process(
            target=run_script, args=(ROOT / run.script, flags, self.workdir, run.log(self.workdir))
        )
        with self.lock:
            if self.stopped:
                return
            process.start()
            self.processes.add(process)
        connection.wait([process.sentinel])  # not join: the start of another run asks too, and the status is told once
        with self.lock:
            process.join()
            self.processes.discard(process)
        if process.exitcode != 0:
            raise RuntimeError(f"exit status {process.exitcode}")

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            for process in self.processes:
                process.terminate()


def script_and_flags(script: str, label: str, flags: str) -> tuple[str, str, str]:
    first, _, rest = flags.partition(" ")
    return (first, label, rest) if first.endswith(".py") else (script, label, flags)


def flat_result(path: Path) -> dict:
    """`result.json` as one level of columns; its flags are those of the row."""
    return {name: value for name, value in json.loads(path.read_text()).items() if name not in ("args", "versions")}


def provenance() -> dict[str, str]:
    """What rows are made with: versions and the commit, -dirty where Python files differ from it, or unknown."""

    def git(*command: str) -> str:
        try:
            return subprocess.run(["git", "-C", ROOT, *command], capture_output=True, text=True).stdout.strip()
        except OSError:  # no git here
            return ""

    dirty = "-dirty" if git("status", "--porcelain", "--", "*.py") else ""
    versions = {f"version_{name}": metadata.version(name) for name in ("torch", "gymnasium", "mujoco")}
    return {"git_commit": (git("rev-parse", "HEAD") or "unknown") + dirty, **versions}


def read_curves(directory: Path, tags: tuple[str, ...], every: int) -> dict[str, tuple[str, str]]:
    """Steps and values of each curve, as text: four digits are more than a plot can show."""
    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    curves = {}
    for tag in [tag for tag in tags if tag in events.Tags()["scalars"]]:  # not every method has every curve
        logged = events.Scalars(tag)
        steps, values = [event.step for event in logged], [event.value for event in logged]
        if every > 1:
            grid = range(-(-steps[0] // every) * every, steps[-1] + 1, every)
            steps, values = list(grid), [values[bisect.bisect_right(steps, step) - 1] for step in grid]
        curves[tag] = " ".join(map(str, steps)), " ".join(f"{value:.4g}" for value in values)
    if "visits" in tags:  # squares of the maze that were visited, column:row, and how often
        squares, visits = np.unique(np.load(directory / "path.npy").astype(int), axis=0, return_counts=True)
        curves["visits"] = " ".join(f"{column}:{row}" for column, row in squares), " ".join(map(str, visits))
    return curves


def progress(done: int, total: int, failed: int, start: float, finished_now: int) -> None:
    left = "?" if not finished_now else f"{(time.time() - start) / finished_now * (total - done) / 60:.1f}"
    filled = 30 * done // max(total, 1)
    bar = "#" * filled + "-" * (30 - filled)
    print(f"\r[{bar}] {done}/{total} runs, {failed} failed, {left} min left   ", end="", file=sys.stderr, flush=True)


def main(args: Args) -> int:
    if args.experiment not in EXPERIMENTS:
        print(f"error: no experiment {args.experiment!r}: choose from {', '.join(EXPERIMENTS)}", file=sys.stderr)
        return 2
    experiment: Experiment = EXPERIMENTS[args.experiment]
    runs = [
        Run(args.experiment, *script_and_flags(experiment.script, label, f"{flags} {args.flags}".strip()), seed)
        for seed in args.seeds or experiment.seeds  # all variants of a seed before the next: early results compare
        for label, flags in experiment.variants.items()
        if args.only in label
    ]
    if not runs:
        print(f"error: no variant of {args.experiment} has {args.only!r} in its label", file=sys.stderr)
        return 2
    table = Table(args.results / f"{args.experiment}.csv")
    curves = Table(args.results / f"{args.experiment}_curves.csv")
    finished = set(map(key, table.rows()))
    waiting = [run for run in runs if run.key not in finished]
    made_with = provenance()
    total, done, failed, start = len(runs), len(runs) - len(waiting), [], time.time()

    def collect(run: Run) -> None:
        directory = args.workdir / "runs" / run.name
        identity = {"label": run.label, "seed": run.seed, "flags": run.flags}
        read = read_curves(directory, experiment.curves, experiment.every)
        curves.add([{**identity, "tag": tag, "steps": s, "values": v} for tag, (s, v) in read.items()])
        result = flat_result(directory / "result.json")
        table.add([{**identity, **result, **made_with}])  # last: this row says that all is there

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # asked to end: the same as interrupted
    workers = Workers(args.workdir)
    pool = ThreadPoolExecutor(args.workers)
    futures: dict[Future, Run] = {pool.submit(workers.execute, run): run for run in waiting}
    try:
        while futures:
            progress(done, total, len(failed), start, done + len(failed) - (total - len(waiting)))
            for future in wait(futures, return_when=FIRST_COMPLETED).done:
                run = futures.pop(future)
                try:
                    future.result()
                    collect(run)
                    done += 1
                except (RuntimeError, OSError, KeyError) as error:
                    failed.append(run)
                    text = f"failed: {run.label}, seed {run.seed}: {error}, see {run.log(args.workdir)}"
                    print(f"\n{text}", file=sys.stderr)
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        workers.stop()
        print(
            f"\ninterrupted: {done} of {total} runs are finished, the same command goes on from here", file=sys.stderr
        )
        return 130
    progress(done, total, len(failed), start, len(waiting))
    print(f"\n{done} of {total} runs finished, {len(failed)} failed; rows in {table.path}", file=sys.stderr)
    return 1 if failed else 0


def listed() -> str:
    """The experiments, for the help."""
    lines = [f"  {name:22}{len(e.variants) * len(e.seeds):4} runs of {e.script}" for name, e in EXPERIMENTS.items()]
    return "\n".join(["Experiments:", "", *lines])


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=f"{__doc__}\n{listed()}")))
