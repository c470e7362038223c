"""What every script promises: its command line, what a run leaves, and the six promises on faults.

A script joins by a line in SCRIPTS, with flags that make its runs short.
"""

import ast
import dataclasses
import io
import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
import time
import tokenize
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import ppo_icm_unichain
import ppo_vime_unichain
import pytest
import torch
from conftest import combinations
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import gp_models
import ptsbe_ppo_mountaincar
import ptsbe_ppo_unichain
import ptsbe_sac_antmaze
import ptsbe_sac_continuous_action
import ptsbe_sac_maze

TINY = {"total_timesteps": 160, "warmup_steps": 60, "policy_updates": 2, "model_updates": 2}
SCRIPTS = {
    ptsbe_sac_maze: {**TINY, "stop_at_goal": False},
    ptsbe_sac_antmaze: {**TINY, "stop_at_goal": False, "rollouts": 10, "horizon": 3, "lookahead": 2},
    ptsbe_sac_continuous_action: {**TINY, "policy_interval": 40, "model_interval": 40, "lookahead": 2},
    ptsbe_ppo_unichain: {
        **TINY,
        "policy_interval": 20,
        "model_interval": 20,
        "rollouts": 4,
        "horizon": 4,
        "lookahead": 2,
    },
    ptsbe_ppo_mountaincar: {**TINY, "policy_interval": 20, "model_interval": 20, "rollouts": 4, "horizon": 4},
}
BUDGET = {"ptsbe_sac_maze": 585, "ptsbe_sac_antmaze": 627, "ptsbe_sac_continuous_action": 570}  # code lines
BUDGET |= {"ptsbe_ppo_unichain": 536, "ptsbe_ppo_mountaincar": 544}
BUDGET |= {"ppo_icm_unichain": 356, "ppo_vime_unichain": 392}
BASELINES = {script: {**TINY, "policy_interval": 20} for script in (ppo_icm_unichain, ppo_vime_unichain)}
TIMES = {"wall_time_s", "sps"}  # what differs between two runs with the same seed

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
every_file = pytest.mark.parametrize("script", [*SCRIPTS, *BASELINES], ids=lambda script: script.__name__)


def settings(script, changes):
    """Flags of a short run; a baseline goes without those for methods and models that it has not."""
    flags = {"seed": 1001, **(SCRIPTS | BASELINES)[script], **changes}
    known = {field.name for field in dataclasses.fields(script.Args)}
    return {name: value for name, value in flags.items() if name in known or script in SCRIPTS}


def short(script, **changes):
    return script.Args(**settings(script, {"run_name": "test", **changes}))


def command(script, *flags, **changes):
    """The run of `short` as a command line."""
    words = []
    for name, value in settings(script, changes).items():
        flag = name.replace("_", "-")
        words += [f"--no-{flag}"] if value is False else [f"--{flag}", str(value)]
    return [sys.executable, script.__file__, *words, *flags]


def refused(capsys, call):
    """The one line with which a call is refused."""
    with pytest.raises(SystemExit) as stop:
        call()
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1
    return error


def taken(result, steps=160):
    """Whether a run took so many steps, with the last action held to its end."""
    return 0 <= result["steps"] - steps < result["args"].get("action_repeat", 1)


def events(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    accumulator.Reload()
    return accumulator


# ------------------------------------------------------------------------------------------------------------- results


def solver(script):
    return "sac" if "_sac_" in script.__name__ else "ppo"


CASES = [(script, *case) for script in SCRIPTS for case in combinations(solver(script))]
CASES += [(script, script.Args.method, None, None) for script in BASELINES]


@pytest.mark.parametrize("script, method, bonus, dynamics", CASES)
def test_every_combination_runs_and_leaves_what_is_promised(in_tmp, script, method, bonus, dynamics):
    result = script.main(short(script, method=method, bonus=bonus, dynamics=dynamics))
    folder = in_tmp / "runs" / "test"
    assert json.loads((folder / "result.json").read_text()) == result
    promised = "script method bonus dynamics env seed total_timesteps steps solved solved_step coverage episodic_return"
    assert {*promised.split(), *TIMES, "interrupted", "args"} <= set(result)
    assert result["script"] == script.__name__ and taken(result) and not result["interrupted"]
    assert 0 < result["coverage"] <= 1 and result["solved"] == (result["solved_step"] is not None)
    explores, models = method in ("be", "pts-be"), method in ("be", "pts", "pts-be")
    assert result["bonus"] == (bonus if explores else None) and result["dynamics"] == (dynamics if models else None)
    width, height = Image.open(folder / "summary.png").size
    assert 300 < width <= 2000 and 300 < height <= 2000
    tags = events(folder).Tags()
    assert {"charts/coverage", "charts/SPS"} <= set(tags["scalars"]) and "visits" in tags["images"]
    measures = {f"bonus/{name}" for name in ("eig", "eig_after", "entropy", "variance", "error")}
    assert (measures <= set(tags["scalars"])) is models and ("eig_map" in tags["images"]) is models
    assert any(tag.startswith("losses/") for tag in tags["scalars"]) is (method != "random")


@every_file
def test_same_seed_same_result_and_another_seed_another(in_tmp, script):
    results = [script.main(short(script, run_name=None, seed=seed)) for seed in (1001, 1001, 1002)]
    paths = [np.load(path) for path in sorted((in_tmp / "runs").glob("*/path.npy"), key=os.path.getmtime)]
    first, again, _ = ({name: value for name, value in result.items() if name not in TIMES} for result in results)
    assert first == again and np.array_equal(paths[0], paths[1]) and not np.array_equal(paths[0], paths[2])


@every_script
def test_default_name_tells_methods_and_moments_apart(in_tmp, script):
    for method in ("random", "random", "pts-be"):
        result = script.main(short(script, run_name=None, method=method, total_timesteps=60))
    names = sorted(folder.name for folder in (in_tmp / "runs").iterdir())
    assert len(names) == 3 and names[0].startswith(f"{result['env']}__pts-be-eig-de__1001__")
    assert names[1].startswith(f"{result['env']}__random__1001__")


@every_file
def test_pictures_come_several_times_in_a_run(in_tmp, script):
    script.main(short(script, total_timesteps=1100, policy_updates=1, model_updates=1))
    for name in ("visits", "eig_map")[: 1 if script in BASELINES else 2]:
        steps = [event.step for event in events(in_tmp / "runs" / "test").Images(name)]
        assert {step // 10 * 10 for step in steps} == {*range(script.PICTURES, 1100, script.PICTURES), 1100}


@every_script
def test_saved_model_loads_without_trust_and_acts_as_before(in_tmp, script):
    script.main(short(script, save_model=True))
    saved = torch.load(in_tmp / "runs" / "test" / "model.pt", weights_only=True)
    args = script.Args(**saved["args"])
    env, _ = script.make_env(args)
    state_dim, action_dim = env.observation_space.shape[0], getattr(env.action_space, "n", env.action_space.shape[:1])
    action_dim = int(np.prod(action_dim))
    policy = getattr(script, solver(script).upper())(state_dim, action_dim, args)
    dynamics = script.PriorEnsemble(state_dim + action_dim, state_dim + 2, args)
    state = torch.zeros(1, state_dim)
    acts = (lambda: policy.act(state, spread=False)[0]) if solver(script) == "sac" else (lambda: policy(state)[0])
    before = acts()
    policy.load_state_dict(saved["policy"])
    dynamics.load_state_dict(saved["dynamics"])
    assert not torch.equal(acts(), before)
    assert (dynamics.seen[0] < dynamics.seen[1]).sum() >= state_dim


@pytest.mark.parametrize("script", [script for script in SCRIPTS if hasattr(script.Args, "eval_episodes")])
def test_evaluation_takes_whole_episodes_without_learning(in_tmp, script):
    changes = {"reset_interval": 150} if hasattr(script.Args, "reset_interval") else {}
    changes |= {"total_timesteps": script.PICTURES + 60}
    plain = script.main(short(script, run_name="plain", **changes))
    result = script.main(short(script, eval_episodes=2, **changes))
    assert 0 <= result["eval_success"] <= 1 and math.isfinite(result["eval_return"])
    assert "eval_success" not in plain and json.loads(Path("runs/test/result.json").read_text()) == result
    assert len(events("runs/test").Scalars("charts/eval_return")) == 1  # during the run, and the run is the same
    assert np.array_equal(np.load("runs/plain/path.npy"), np.load("runs/test/path.npy"))


# --------------------------------------------------------------------------------------------------------- command line


@every_script
def test_flags_not_given_are_tuned_for_the_method_and_the_model(script):
    for name, tuned in script.TUNED.items():
        flag = "--dynamics" if name in ("de", "gp", "dk") else "--method"
        args = dataclasses.asdict(script.parse([flag, name]))
        expected = {**dataclasses.asdict(script.Args()), flag[2:]: name, **tuned}
        assert args == expected
    assert script.parse(["--method", "be", "--eta", "0.25"]).eta == 0.25
    assert script.parse([]) == script.Args()


@every_script
def test_help_shows_what_a_method_runs_with(script):
    text = {}
    for method in ("pts-be", "be"):
        run = subprocess.run([sys.executable, script.__file__, "--method", method, "--help"], capture_output=True)
        text[method] = re.sub(r"[\s│]+", " ", run.stdout.decode())
        assert run.returncode == 0
    for field in dataclasses.fields(script.Args):
        assert f"--{field.name.replace('_', '-')}" in text["be"]
    for name, value in script.TUNED["be"].items():
        assert f"(default: {getattr(script.Args, name)})" in text["pts-be"] and f"(default: {value})" in text["be"]


@every_file
def test_every_number_has_its_range_and_what_lies_outside_is_refused(in_tmp, capsys, script):
    ranges = {name: bounds for names, bounds in script.RANGES.items() for name in names.split()}
    numbers = {field.name for field in dataclasses.fields(script.Args) if field.type in (int, float)}
    assert set(ranges) <= numbers
    for name in numbers:
        low, high = ranges.get(name, (1, math.inf))
        for value in [low - 1, math.nan, math.inf] + [high + 1] * (high < math.inf):
            error = refused(capsys, lambda name=name, value=value: script.main(short(script, **{name: value})))
            assert f"--{name.replace('_', '-')} is {value}" in error
    assert not list(in_tmp.iterdir())


@every_file
@pytest.mark.parametrize(
    "flags, message",
    [
        ({"method": "pts-be", "bonus": "error"}, "needs the real next state"),
        ({"cuda": True}, "PyTorch sees no GPU"),
        ({"run_name": "../elsewhere"}, "not in runs/"),
        ({"run_name": "/tmp/elsewhere"}, "not in runs/"),
        ({"run_name": "."}, "not in runs/"),
    ],
)
def test_bad_input_gets_one_line_and_status_2_and_writes_nothing(in_tmp, capsys, monkeypatch, script, flags, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if script in BASELINES and "bonus" in flags:
        pytest.skip("one method, one bonus")
    assert message in refused(capsys, lambda: script.main(short(script, **flags)))
    assert not list(in_tmp.iterdir())


@every_script
def test_a_wrong_choice_gets_the_right_ones(in_tmp, script):
    run = subprocess.run([sys.executable, script.__file__, "--bonus", "eigg"], capture_output=True, text=True)
    assert run.returncode == 2 and "entropy" in run.stderr and not list(in_tmp.iterdir())


@every_file
def test_wandb_gets_project_entity_and_name(in_tmp, monkeypatch, script):
    calls = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: calls.append(settings)))
    script.main(short(script, method="random", track=True, wandb_project_name="mine", wandb_entity="team"))
    assert calls[0]["project"] == "mine" and calls[0]["entity"] == "team" and calls[0]["name"] == "test"
    assert calls[0]["config"]["seed"] == 1001 and calls[0]["sync_tensorboard"]


# ------------------------------------------------------------------------------------------------------- six promises


@every_file
def test_a_picture_or_a_video_that_fails_is_a_warning_and_the_run_counts(in_tmp, capsys, monkeypatch, script):
    def broken(*_, **__):
        assert (in_tmp / "runs" / "test" / "result.json").exists() or not ended
        raise RuntimeError("no renderer")

    ended = []
    finish = script.Run.finish
    monkeypatch.setattr(script.Run, "finish", lambda self, *inputs: ended.append(1) or finish(self, *inputs))
    monkeypatch.setattr(script.Visits, "picture", broken)
    monkeypatch.setattr(script.gym.wrappers, "RecordVideo", broken)
    result = script.main(short(script, capture_video=True, total_timesteps=500))
    assert json.loads(Path("runs/test/result.json").read_text()) == result and taken(result, 500)
    lines = capsys.readouterr().out.splitlines()
    assert (
        sum("warning: " in line and "no renderer" in line for line in lines) == 500 // script.PICTURES + 2
    )  # pictures were due


@every_file
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_as_others_do(in_tmp, script, number):
    process = subprocess.Popen(command(script, "--run-name", "test", "--save-model", total_timesteps=10**6))
    folder = in_tmp / "runs" / "test"
    for _ in range(600):
        if list(folder.glob("events*")):
            break
        time.sleep(0.1)
    time.sleep(1)  # the loop is under way
    process.send_signal(number)
    assert process.wait(timeout=60) == 128 + number
    result = json.loads((folder / "result.json").read_text())
    assert result["interrupted"] and 0 < result["steps"] < 10**6
    assert all((folder / name).exists() for name in ("model.pt", "summary.png")) and not list(folder.glob("*.tmp"))


@every_file
@pytest.mark.parametrize("method", ["solver", "pts-be"])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_what_was_learned(in_tmp, capsys, script, method):
    with pytest.raises(SystemExit) as stop:
        script.main(short(script, method=solver(script) if method == "solver" else method, policy_lr=1e30))
    error = capsys.readouterr().err
    assert stop.value.code == 1 and re.fullmatch(r"error: losses/\w+ is (nan|-?inf) at step \d+; .*model.pt\n", error)
    assert {"args", "policy", "dynamics"} == set(torch.load("runs/test/model.pt", weights_only=True))
    assert not Path("runs/test/result.json").exists()


@every_file
def test_a_state_that_is_not_finite_stops_the_run(in_tmp, capsys, monkeypatch, script):
    make_env = script.make_env

    def broken(args):
        env, visits = make_env(args)
        step = env.step
        env.step = lambda action: (math.nan * step(action)[0], *step(action)[1:])
        return env, visits

    monkeypatch.setattr(script, "make_env", broken)
    with pytest.raises(SystemExit) as stop:
        script.main(short(script))
    assert stop.value.code == 1 and "the state after step 0 is not finite" in capsys.readouterr().err
    assert Path("runs/test/model.pt").exists()


@every_script
def test_a_failed_cholesky_stops_the_run(in_tmp, capsys, monkeypatch, script):
    monkeypatch.setattr(gp_models.torch.linalg, "cholesky_ex", lambda matrix: (matrix, torch.ones(1)))
    with pytest.raises(SystemExit) as stop:
        script.main(short(script, dynamics="gp"))
    assert stop.value.code == 1 and "Cholesky of K_ZZ failed" in capsys.readouterr().err
    assert Path("runs/test/model.pt").exists()


@every_file
def test_a_name_that_is_taken_is_refused_and_the_run_there_stays(in_tmp, capsys, script):
    script.main(short(script, method="random"))
    before = {path: path.read_bytes() for path in (in_tmp / "runs" / "test").iterdir()}
    capsys.readouterr()
    assert "is taken" in refused(capsys, lambda: script.main(short(script, method="random", seed=1002)))
    assert before == {path: path.read_bytes() for path in (in_tmp / "runs" / "test").iterdir()}


@every_file
@pytest.mark.parametrize("shell", ["{} >&-", "{} | true", "{} > /dev/full", "PATH= {}"], ids=str)
def test_nothing_outside_the_run_can_lose_it(in_tmp, script, shell):
    words = command(script, run_name="test", method="random")
    run = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell.format(" ".join(words))], stderr=subprocess.PIPE, text=True
    )
    assert run.returncode == 0 and run.stderr == ""
    assert taken(json.loads(Path("runs/test/result.json").read_text()))


@pytest.mark.parametrize("script, dynamics", [*((script, "de") for script in SCRIPTS), (ptsbe_ppo_unichain, "gp")])
def test_no_run_waits_for_torchs_compiler(in_tmp, script, dynamics):
    """Nor for sympy, which some public functions of torch import; model and policy take steps."""
    words = command(script, run_name="test", dynamics=dynamics)
    run = subprocess.run([words[0], "-X", "importtime", *words[1:]], capture_output=True, text=True)
    assert run.returncode == 0 and "gp_models" in run.stderr
    assert "torch._dynamo" not in run.stderr and "sympy" not in run.stderr


@every_file
def test_progress_is_one_line_on_a_terminal_and_the_last_line_elsewhere(in_tmp, script):
    words = command(script, "--run-name", "test")
    run = subprocess.run(words, capture_output=True, text=True)
    assert run.stdout.count("\n") == 1 and run.stdout.split()[-1] == "runs/test/summary.png" and not run.stderr
    words[words.index("test")] = "again"
    shown = io.BytesIO()

    def read(descriptor):
        shown.write(chunk := os.read(descriptor, 1024))
        return chunk

    pty.spawn(words, read)
    text = shown.getvalue().decode()
    assert re.search(r"\rstep \d+/160  coverage 0\.\d\d  \d+ steps/s  at most \d+ s left", text)
    assert text.count("\n") == 1 and text.split()[-1] == "runs/again/summary.png"


# ---------------------------------------------------------------------------------------------------------------- size


def code_lines(source):
    """Lines without blanks, comments and docstrings."""
    documentation, used = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documentation |= set(range(node.lineno, node.end_lineno + 1))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            used |= set(range(token.start[0], token.end[0] + 1)) if token.string else set()
    return len(used - documentation)


@every_file
def test_a_script_stays_within_its_budget(script):
    source = Path(script.__file__).read_text()
    assert code_lines(source) <= BUDGET[script.__name__]
    for node in ast.parse(source).body:
        lines = code_lines(ast.get_source_segment(source, node)) if isinstance(node, ast.ClassDef) else 0
        assert lines <= 60 or node.name == "Args"
        if isinstance(node, ast.FunctionDef) and node.name == "main":
            assert code_lines(ast.get_source_segment(source, node)) <= 80
    assert len(dataclasses.fields(script.Args)) <= 40 and "torch._" not in source


@every_script
def test_main_carries_the_lines_of_algorithm_1(script):
    source = Path(script.__file__).read_text()
    numbers = set()
    for comment in re.findall(r"# .*?lines? (\d+(?: (?:to|and) \d+)?)", source[source.index("def main") :]):
        bounds = [int(number) for number in re.findall(r"\d+", comment)]
        numbers |= set(range(bounds[0], bounds[-1] + 1))
    assert numbers == set(range(1, 15))
