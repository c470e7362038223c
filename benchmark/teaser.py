"""The picture at the top of README.md: SAC beside PTS-BE in the same maze, and how EIG fades.

    python benchmark/teaser.py

Both methods run anew with the seed until they reach the goal; a dot is a step of the simulator. The three maps show
PTS-BE's EIG for a ball at rest after the warm-up, halfway and at the goal, all in the colours of the first.
"""

import contextlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import tyro
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import ptsbe_sac_maze as script

PAPER, INK, MUTED, WALL, FLOOR = (250, 248, 242), (35, 38, 45), (120, 122, 128), (70, 76, 88), (255, 255, 255)
COLOURS = {"sac": (111, 134, 179), "pts-be": (209, 62, 78)}  # as in the figures
KNOWN, UNKNOWN, GOAL = (255, 255, 255), (209, 62, 78), (35, 150, 85)
BIG, SIDE, GAP, TOP, SCALE = 380, 176, 24, 64, 2  # widths in pixels; drawn larger by SCALE and then made smaller


@dataclass
class Args:
    maze: str = "double-u-shape"  # as --maze of the script
    seed: int = 11  # the run in the middle of the twenty of the table
    total_timesteps: int = 2000  # at most so many, of both methods
    frames: int = 60  # pictures of the animation
    output: Path = ROOT / "benchmark" / "figures" / "teaser.gif"  # where it goes


def record(method: str, args: Args) -> tuple[script.Visits, np.ndarray, dict[int, np.ndarray]]:
    """A run of a method: its visits, path in squares (steps, 2), and EIG of the free squares (P,) by step."""
    maps, seen = {}, []

    def keep(run: script.Run, step: int, dynamics: script.Dynamics | None) -> None:
        seen[:] = [run.visits]
        if dynamics is not None and method == "pts-be":
            prediction = dynamics.predict(torch.as_tensor(run.visits.probes()))
            maps[step] = script.bonuses(dynamics, *prediction)["eig"].numpy()

    flags = ["--method", method, "--maze", args.maze, "--seed", str(args.seed)]
    flags += ["--total-timesteps", str(args.total_timesteps)]
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mock.patch.multiple(script, show=keep, PICTURES=20),
    ):
        result = script.main(script.parse(flags))
    return seen[0], np.concatenate(seen[0].path)[: result["steps"] + 1], maps


def font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(SCALE * size)


class Panel:
    """A maze of a given width at a place of the picture, half a cell of its border shown."""

    def __init__(self, picture: Image.Image, visits: script.Visits, corner: tuple[int, int], width: int):
        self.draw, self.visits, self.corner, self.width = ImageDraw.Draw(picture), visits, corner, width
        self.zoom = width / (visits.size.max() - script.PARTS)  # pixels of a square

    def at(self, place: np.ndarray) -> tuple[float, float]:
        """Pixels of a place in squares (column, row)."""
        return tuple(SCALE * (np.array(self.corner) + self.zoom * (np.asarray(place) - script.PARTS / 2)))

    def floor(self, colours: np.ndarray | None = None) -> None:
        """Walls, the free squares in colours (P, 3), start and goal."""
        end = self.at(self.visits.size - script.PARTS / 2)
        self.draw.rectangle((*self.at((script.PARTS / 2,) * 2), *end), WALL)
        squares = np.argwhere(self.visits.free)
        colours = np.broadcast_to(FLOOR, (len(squares), 3)) if colours is None else colours
        for (row, column), colour in zip(squares, colours, strict=True):
            self.draw.rectangle((*self.at((column, row)), *self.at((column + 1, row + 1))), tuple(map(int, colour)))
        radius = SCALE * self.zoom * script.RADIUS * script.PARTS / script.CELL
        for place, colour in ((self.visits.start, MUTED), (self.visits.goal, GOAL)):
            self.draw.circle(self.at(place), radius, outline=colour, width=SCALE * self.width // 120)
        if self.width == BIG:
            self.draw.text(self.at(self.visits.goal), "goal", GOAL, font(15), anchor="mm")

    def path(self, path: np.ndarray, colour: tuple[int, int, int]) -> None:
        """Dots that are pale where they are old, and the ball."""
        age = np.linspace(1, 0, len(path))[:, None] ** 2
        shades = np.array(colour) + 0.65 * age * (np.array(FLOOR) - colour)
        for place, shade in zip(path, shades.astype(int), strict=True):
            self.draw.circle(self.at(place), SCALE * 1.7, tuple(shade))
        self.draw.circle(self.at(path[-1]), SCALE * 6, colour, outline=FLOOR, width=SCALE)

    def text(self, above: int, words: str, size: int, colour: tuple[int, int, int] = INK) -> None:
        place = SCALE * np.add(self.corner, (self.width / 2, -above))
        self.draw.text(tuple(place), words, colour, font(size), anchor="mm")


def frame(runs: dict[str, tuple], maps: dict[int, np.ndarray], step: int, last: int) -> Image.Image:
    """The picture at a step: paths up to it, and the maps of EIG that there are by then."""
    left = 3 * GAP + 2 * BIG
    picture = Image.new("RGB", (SCALE * (left + SIDE + GAP), SCALE * (TOP + BIG + GAP)), PAPER)
    for column, (method, (visits, path)) in enumerate(runs.items()):
        panel = Panel(picture, visits, (GAP + column * (BIG + GAP), TOP), BIG)
        panel.floor()
        panel.path(path[: step + 1], COLOURS[method])
        panel.text(42, {"sac": "SAC", "pts-be": "PTS-BE"}[method], 22, COLOURS[method])
        text = f"step {step}" if step < last else f"not there after {step} steps"
        if visits.solved_step is not None and step >= visits.solved_step:
            text = f"at the goal after {visits.solved_step} steps"
        panel.text(16, text, 15, MUTED)
    high, pitch = next(iter(maps.values())).max(), BIG / len(maps)
    for row, (moment, eig) in enumerate(maps.items()):
        panel = Panel(picture, visits, (left + 34, TOP + round(row * pitch) + 20), round(pitch) - 20)
        if row == 0:
            panel.text(58, "EIG: what is left to learn", 15, COLOURS["pts-be"])
        share = np.clip(eig / high, 0, 1)[:, None] if step >= moment else np.full((len(eig), 1), np.nan)
        colours = np.array(KNOWN) + share * np.subtract(UNKNOWN, KNOWN)
        panel.floor(np.nan_to_num(colours, nan=235))
        panel.text(9, f"step {moment}", 13, MUTED)
    return picture.resize((picture.width // SCALE, picture.height // SCALE), Image.Resampling.LANCZOS)


def main(args: Args) -> None:
    torch.set_num_threads(1)
    *_, maps = planner = record("pts-be", args)
    runs = {"sac": record("sac", args)[:2], "pts-be": planner[:2]}
    moments = [min(maps, key=lambda step: abs(step - share * max(maps))) for share in (0, 0.5, 1)]
    maps, last = {moment: maps[moment] for moment in moments}, max(len(path) for _, path in runs.values()) - 1
    frames = [frame(runs, maps, int(step), last) for step in np.linspace(0, last, args.frames)]
    palette = frames[-1].quantize(160, dither=Image.Dither.NONE)
    frames = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in frames]
    durations = [100] * (len(frames) - 1) + [4000]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(args.output, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)
    print(f"{args.output}: {args.output.stat().st_size / 1e6:.2f} MB, {len(frames)} frames")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
