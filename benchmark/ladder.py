"""How little it takes: `benchmark/ladder.md` and a table of README.md, from the sources, as short diffs.

    python benchmark/ladder.py

`main` of the maze script serves all methods. For one of them the conditions on the method are decided and what cannot
happen is left out; the rest is the text of the script. Two such texts are a rung.
"""

import ast
import difflib
import io
import tokenize
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import tyro
from plot import insert, table

ROOT = Path(__file__).resolve().parents[1]
MAZE, ANT = ROOT / "ptsbe_sac_maze.py", ROOT / "ptsbe_sac_antmaze.py"
RUNGS = {"sac": "SAC", "be": "BE", "pts-be": "PTS-BE"}
NEW = ("PriorEnsemble", "mixture_eig", "bonuses"), ("imagine",)  # what the second and the third need of the file
ROBOT = ("turn", "random_like", "change", "changed", "valid")  # what the agent knows of its body


@dataclass
class Args:
    pages: Path = ROOT  # folder of README.md and benchmark/


def definitions(path: Path) -> dict[str, str]:
    """Source of every class, function and group of constants of a script, by name."""
    source, found = path.read_text(), {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = ast.get_source_segment(source, node)
        elif isinstance(node, ast.Assign):
            target = node.targets[0]
            names = [ast.unparse(name) for name in getattr(target, "elts", [target])]
            found[", ".join(names)] = ast.get_source_segment(source, node)
    return found


class Decide(ast.NodeTransformer):
    """Expressions with what is known of a method put in: comparisons, and, or, not, x if y else z."""

    def __init__(self, known: dict[str, object]):
        self.known = known

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            text = ast.unparse(node)
            if text in self.known:
                return ast.Constant(self.known[text])
        return super().visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.left, ast.Constant):  # args.method == "sac" or args.method in (...)
            return ast.Constant(eval(ast.unparse(node)))
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        ends = isinstance(node.op, ast.Or)  # the value that decides it
        values = []
        for value in node.values:
            if isinstance(value, ast.Constant):
                if bool(value.value) == ends:
                    values.append(ast.Constant(ends))
                    break
            else:
                values.append(value)
        if isinstance(values[-1] if values else None, ast.Constant):
            return ast.Constant(ends)
        return ast.Constant(not ends) if not values else values[0] if len(values) == 1 else ast.BoolOp(node.op, values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        decided = isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Constant)
        return ast.Constant(not node.operand.value) if decided else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node


class Specialised:
    """The text of a function for one method."""

    def __init__(self, source: str, known: dict[str, object]):
        self.lines, self.known, self.text = source.splitlines(), known, []
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        self.comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
        self.write(ast.parse(source).body[0].body, 1)

    def decide(self, node: ast.expr) -> ast.AST:
        return Decide(self.known).visit(ast.parse(ast.unparse(node), mode="eval").body)

    def put(self, node: ast.AST, last: int, depth: int, changed: str | None = None) -> None:
        """The lines of a node up to the last, or what has become of them, with the comments beside and above."""
        first = node.lineno
        while first - 1 in self.comments and self.lines[first - 2].lstrip().startswith("#"):
            first -= 1
        above, own = self.lines[first - 1 : node.lineno - 1], self.lines[node.lineno - 1 : last]
        if changed is not None:
            comment = self.comments.get(node.lineno)
            own = [changed + (f"  {comment}" if comment else "")]
        shift = len(own[0]) - len(own[0].lstrip())
        self.text += [4 * depth * " " + line.lstrip() for line in above]
        self.text += [4 * depth * " " + line[shift:] for line in own]

    def write(self, body: list[ast.stmt], depth: int) -> None:
        for node in body:
            if isinstance(node, ast.If):
                self.branch(node, depth)
            elif isinstance(node, ast.While | ast.For | ast.With):
                self.put(node, node.body[0].lineno - 1 if node.body[0].lineno > node.lineno else node.lineno, depth)
                self.write(node.body, depth + 1)
            elif not (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) in ("plans, explores", "(plans, explores)")
            ):
                text = ast.unparse(node)
                decided = ast.unparse(Decide(self.known).visit(ast.parse(text)))
                self.put(node, node.end_lineno, depth, None if decided == text else decided)

    def branch(self, node: ast.If, depth: int, word: str = "if") -> None:
        test = self.decide(node.test)
        if isinstance(test, ast.Constant):
            if test.value and word == "if":
                self.write(node.body, depth)
            elif not test.value and len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
                self.branch(node.orelse[0], depth, word)
            elif not test.value and node.orelse:
                self.text += [4 * depth * " " + "else:"] if word == "elif" else []
                self.write(node.orelse, depth + (word == "elif"))
            return
        self.put(node, node.lineno, depth, f"{word} {ast.unparse(test)}:")
        self.write(node.body, depth + 1)
        if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            self.branch(node.orelse[0], depth, "elif")
        elif node.orelse:
            self.text.append(4 * depth * " " + "else:")
            self.write(node.orelse, depth + 1)


def specialise(source: str, method: str) -> list[str]:
    """`main` for one method, with real data alone for BE and imagined data alone for PTS-BE, as in the mazes."""
    known = {"args.method": method, "plans": method == "pts-be", "explores": method != "sac", "args.real_share": 0.0}
    if method == "sac":
        known["eta"] = 0.0
    return [line for line in Specialised(source, known).text if line.strip() != "eta = 0.0"]


def diff(before: list[str], after: list[str], context: int = 1) -> list[str]:
    lines = list(difflib.unified_diff(before, after, lineterm="", n=context))[2:]
    return ["```diff", *["..." if line.startswith("@@") else line for line in lines], "```"]


def size(lines: list[str]) -> tuple[int, int]:
    """How many lines go out and come in."""
    return sum(line.startswith("-") for line in lines), sum(line.startswith("+") for line in lines)


def rungs(maze: dict[str, str]) -> dict[str, list[str]]:
    """From one method to the next, by title."""
    texts = [specialise(maze["main"], method) for method in RUNGS]
    titles = [f"From {low} to {high}" for low, high in pairwise(RUNGS.values())]
    return {title: diff(*texts) for title, texts in zip(titles, pairwise(texts), strict=True)}


def page(maze: dict[str, str], ant: dict[str, str]) -> list[str]:
    text = ["# The ladder: from SAC to PTS-BE, from a ball to an ant", ""]
    text += ["Made by `python benchmark/ladder.py` from the scripts. `main` serves all methods by a few conditions on"]
    text += ["`--method`; here they are decided for one method, and two methods are compared.", ""]
    for (title, lines), names in zip(rungs(maze).items(), NEW, strict=True):
        parts = ", ".join(f"`{name}` ({len(maze[name].splitlines())} lines)" for name in names)
        text += [f"## {title}", "", f"Of the file it needs, in addition: {parts}.", "", *lines, ""]
    same = [name for name in maze if maze[name] == ant.get(name)]
    text += [
        "## From the ball to the ant",
        "",
        f"The same text in both: {', '.join(f'`{name}`' for name in same)}.",
        "",
    ]
    text += ["| what differs | lines out | lines in |", "| --- | --- | --- |"]
    for name in [name for name in ant if name not in same]:
        out, into = size(diff(maze.get(name, "").splitlines(), ant[name].splitlines(), 0))
        text.append(f"| `{name}` | {out} | {into} |")
    text += ["", "What the agent is told of its body, in full:", ""]
    before = [line for name in ROBOT if name in maze for line in ["", *maze[name].splitlines()]]
    after = [line for name in ROBOT if name in ant for line in ["", *ant[name].splitlines()]]
    return [*text, *diff(before, after, 2)]


def main(args: Args) -> None:
    maze, ant = definitions(MAZE), definitions(ANT)
    (args.pages / "benchmark" / "ladder.md").write_text("\n".join(page(maze, ant)) + "\n")
    rows = []
    for title, lines in rungs(maze).items():
        out, into = size(lines)
        rows.append({"in `main`": title, "lines out": str(out), "lines in": str(into)})
    insert(args.pages / "README.md", "ladder", table(rows))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
