"""A class or function that stands in several scripts under the same name is the same text in all of them."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted([*ROOT.glob("ptsbe_*.py"), *(ROOT / "baselines").glob("*.py")])
OWN = {"Args", "make_env", "random_like", "change", "changed", "valid", "worth", "Visits"}  # a script's own by nature


def definitions(path):
    source = path.read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name, ast.get_source_segment(source, node)


def test_copies_are_word_for_word_the_same():
    texts = defaultdict(lambda: defaultdict(list))
    for path in SCRIPTS:
        solver = path.stem.split("_")[1]  # ppo and sac, or the method of a baseline
        for name, text in definitions(path):
            if name not in OWN:
                texts[name, name in ("main", "imagine") and solver][text].append(path.name)
    differing = {name: list(versions.values()) for name, versions in texts.items() if len(versions) > 1}
    assert not differing, f"same name, different text: {differing}"


def test_scripts_import_nothing_of_this_repository_but_gp_models():
    own = {path.stem for path in ROOT.glob("*.py")} | {"baselines", "benchmark", "tests"}
    for path in SCRIPTS:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in own - {"gp_models"}, f"{path.name} imports {name}"
