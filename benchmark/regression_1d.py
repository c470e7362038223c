"""Three pictures of the expected information gain (EIG) in one dimension, as PNG and as CSV of what they show.

    python benchmark/regression_1d.py

noise    A deep ensemble on data with a noisy middle and a gap: entropy rises with either, EIG only in the gap.
models   Six models of the same 100 points: band, calibration, training time.
decay    EIG against the number of observations, sampled at random and where EIG is largest, beside the minimax rate.
"""

import csv
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from plot import save  # and its style

from gp_models import SVGP, Kernel, ResNetFeatures, Standardizer, cholesky, inverse_softplus
from ptsbe_ppo_mountaincar import gaussian_eig, mixture_eig

BLUE, RED, GREEN, GREY = "#3b7dd8", "#d13e4e", "#2a9d5c", "#8a8a8a"


class BatchedMLP(nn.Module):
    """Networks of the same size as one batch of matrices: a layer of all of them is one product.

    Weights and biases of layer l are drawn from U(-g, g), g = gains[l] / sqrt(inputs of the layer).
    """

    def __init__(self, networks: int, sizes: tuple[int, ...], gains: tuple[float, ...]):
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for (fan_in, fan_out), gain in zip(pairwise(sizes), gains, strict=True):
            bound = gain / math.sqrt(fan_in)
            self.weights.append(nn.init.uniform_(torch.empty(networks, fan_in, fan_out), -bound, bound))
            self.biases.append(nn.init.uniform_(torch.empty(networks, 1, fan_out), -bound, bound))
        self.layers = tuple(zip(self.weights, self.biases, strict=True))  # a ParameterList is slow to walk

    def forward(self, x: Tensor) -> Tensor:
        """(M, N, in) -> (M, N, out)."""
        for weight, bias in self.layers[:-1]:
            x = F.silu(torch.baddbmm(bias, x, weight))  # (M, N, width)
        weight, bias = self.layers[-1]
        return torch.baddbmm(bias, x, weight)


class DeepEnsemble(nn.Module):
    """M probabilistic networks (Lakshminarayanan et al., 2017), trained and evaluated as one.

    The wider the first layer is drawn (gain), the more the members differ where there is no data.
    """

    MIN_LOG_VAR, MAX_LOG_VAR = -6.0, 2.0  # of the standardised targets

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        members: int = 5,
        width: int = 64,
        gain: float = 1.0,
        lr: float = 1e-3,
        batch_size: int = 128,
    ):
        super().__init__()
        self.members, self.lr, self.batch_size = members, lr, batch_size
        self.networks = BatchedMLP(members, (in_dim, width, width, 2 * out_dim), (gain, 1.0, 1.0))
        self.in_scale, self.out_scale = Standardizer(in_dim), Standardizer(out_dim)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr, fused=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the standardised targets: (M, N, in) -> 2 x (M, N, D)."""
        mean, raw = self.networks(x).chunk(2, -1)
        return mean, self.MIN_LOG_VAR + (self.MAX_LOG_VAR - self.MIN_LOG_VAR) * raw.sigmoid()

    def fit(self, x: Tensor, y: Tensor, steps: int) -> float:
        """Gradient steps on the Gaussian negative log-likelihood; every member draws its own mini-batches.

        The learning rate falls to 0 within every call: at a constant rate the members jitter and EIG cannot fade.
        """
        self.in_scale.fit(x)
        self.out_scale.fit(y)
        x, y = self.in_scale(x), self.out_scale(y)
        indices = torch.randint(len(x), (steps, self.members, self.batch_size), device=x.device)
        for step, index in enumerate(indices):
            self.optimizer.param_groups[0]["lr"] = self.lr * (1 - step / steps)
            mean, log_var = self(x[index])  # (M, B, D) each
            loss = (log_var + (y[index] - mean).square() * (-log_var).exp()).mean(1).sum()  # 2 NLL, summed over members
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item() / (2 * self.members)

    @torch.no_grad()
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and noise variance of every member, in the units of the targets: (N, in) -> 2 x (M, N, D)."""
        mean, log_var = self(self.in_scale(x).expand(self.members, -1, -1))
        return self.out_scale.mean + self.out_scale.scale * mean, self.out_scale.scale.square() * log_var.exp()


def gaussian_entropy(var: Tensor) -> Tensor:
    """Entropy of diagonal Gaussians, in nats: (..., D) -> (...)."""
    return 0.5 * (2 * math.pi * math.e * var).log().sum(-1)


@dataclass
class Args:
    seed: int = 1
    """seed of the data and of every model"""
    figures: Path = ROOT / "benchmark" / "figures"
    """folder of the pictures"""
    results: Path = ROOT / "benchmark" / "results"
    """folder of the CSV files"""


# ------------------------------------------------------------------------------------------------------------- exact GP


class Matern(Kernel):
    """Matérn kernel of smoothness 1.5 or 2.5 with one length-scale per input: `(N, D), (M, D) -> (P, N, M)`."""

    def __init__(self, in_dim: int, out_dim: int, smoothness: float):
        super().__init__(in_dim, out_dim)
        self.smoothness = smoothness

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        x, z = x / self.lengthscale, z / self.lengthscale  # (P, N, D), (P, M, D)
        norms = x.square().sum(-1)[:, :, None] + z.square().sum(-1)[:, None, :]
        square = 2 * torch.baddbmm(0.5 * norms, x, z.mT, alpha=-1)  # |x - z|^2, (P, N, M)
        r = (2 * self.smoothness * square.clamp_min(2e-20)).sqrt()  # the bound keeps the root's gradient finite at 0
        polynomial = 1 + r if self.smoothness == 1.5 else 1 + r + r.square() / 3
        return self.outputscale * polynomial * torch.exp(-r)


class ExactGP(nn.Module):
    """GP regression on all the data, O(n^3), independent outputs. With `features`, exact deep-kernel learning."""

    MIN_NOISE = 1e-4  # variance, in units of the standardised targets

    def __init__(self, kernel: Kernel, features: nn.Module | None = None, in_dim: int = 1, out_dim: int = 1):
        super().__init__()
        self.kernel, self.features = kernel, features if features is not None else nn.Identity()
        self.raw_noise = nn.Parameter(inverse_softplus(0.1).repeat(out_dim))
        self.in_scale, self.out_scale = Standardizer(in_dim), Standardizer(out_dim)

    @property
    def scaled_noise(self) -> Tensor:
        return self.MIN_NOISE + F.softplus(self.raw_noise)  # (P,), of the standardised targets

    @property
    def noise(self) -> Tensor:
        return self.scaled_noise * self.out_scale.scale.square()  # (P,), in the units of the targets

    def factors(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features h `(N, H)`, standardised targets `(P, N, 1)` and L with K_XX + noise I = L L^T, `(P, N, N)`."""
        h, y = self.features(self.in_scale(x)), self.out_scale(y).mT[:, :, None]
        noise = torch.diag_embed(self.scaled_noise[:, None].expand(-1, len(x)))
        return h, y, cholesky(self.kernel(h, h) + noise, "K_XX + noise")

    def log_marginal_likelihood(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(y | X), summed over outputs, in the units of y."""
        _, y, L = self.factors(x, y)
        residual = torch.linalg.solve_triangular(L, y, upper=False)  # (P, N, 1)
        log_det = 2 * L.diagonal(dim1=1, dim2=2).log().sum()
        log_jacobian = -len(x) * self.out_scale.scale.log().sum()
        return -0.5 * (residual.square().sum() + log_det + y.numel() * math.log(2 * math.pi)) + log_jacobian

    def fit(self, x: Tensor, y: Tensor, steps: int, lr: float) -> None:
        """Standardise, maximise the log marginal likelihood over the hyper-parameters, condition on the data."""
        self.in_scale.fit(x)
        self.out_scale.fit(y)
        optimizer = torch.optim.Adam(self.parameters(), lr=lr)
        for _ in range(steps):
            optimizer.zero_grad()
            (-self.log_marginal_likelihood(x, y)).backward()
            optimizer.step()
        self.condition(x, y)

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> None:
        """Take this data, keeping scales and hyper-parameters."""
        h, y, L = self.factors(x, y)
        self.posterior = h, L, torch.cholesky_solve(y, L)

    @torch.no_grad()
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the latent function in the units of the targets, both `(N, P)`."""
        h, L, alpha = self.posterior
        K = self.kernel(h, self.features(self.in_scale(x)))  # (P, N, N_new)
        var = self.kernel.outputscale[:, 0] - torch.linalg.solve_triangular(L, K, upper=False).square().sum(1)
        mean, var = (K.mT @ alpha)[:, :, 0], var.clamp_min(torch.finfo(var.dtype).eps)  # (P, N_new)
        return self.out_scale.mean + self.out_scale.scale * mean.mT, self.out_scale.scale.square() * var.mT


# -------------------------------------------------------------------------------------------------------- figure: noise


def noise_level(x: Tensor, heteroskedastic: bool) -> Tensor:
    bump = torch.exp(-0.5 * (x / 0.5) ** 4)  # flat over the middle region |x| < 0.4, gone at |x| = 1
    return 0.1 + 0.4 * bump if heteroskedastic else torch.full_like(x, 0.1)


def noise_data(heteroskedastic: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same density of data over [-3, 3] and [5, 6], none between."""
    x = 7 * torch.rand(700, 1, generator=generator) - 3
    x = torch.where(x > 3, x + 2, x)
    return x, torch.sin(2 * x) + noise_level(x, heteroskedastic) * torch.randn(x.shape, generator=generator)


REGIONS = {
    "noisy middle": lambda x: x.abs() < 0.5,
    "quiet": lambda x: (x.abs() > 1.25) & (x.abs() < 2.75),
    "gap": lambda x: (x > 3.5) & (x < 4.5),
    "data": lambda x: (x.abs() < 2.75) | ((x > 5.25) & (x < 5.75)),
}


def noise_case(heteroskedastic: bool, seed: int, steps: int = 2000) -> dict[str, Tensor]:
    """Curves over a grid of x, and the means of entropy and EIG over the regions."""
    torch.manual_seed(seed)
    data_x, data_y = noise_data(heteroskedastic, torch.Generator().manual_seed(seed))
    ensemble = DeepEnsemble(1, 1, gain=6.0)
    ensemble.fit(data_x, data_y, steps)
    x = torch.linspace(-4, 7, 551)
    mean, var = ensemble.predict(x[:, None])  # (M, N, 1)
    eig = mixture_eig(mean, var)
    return {
        "data_x": data_x[:, 0],
        "data_y": data_y[:, 0],
        "x": x,
        "mean": mean.mean(0)[:, 0],
        "std": (var.mean(0) + mean.var(0, correction=0)).sqrt()[:, 0],
        "entropy": eig + gaussian_entropy(var).mean(0),
        "eig": eig,
    }


def region_means(case: dict[str, Tensor], measure: str) -> dict[str, float]:
    return {name: float(case[measure][inside(case["x"])].mean()) for name, inside in REGIONS.items()}


def draw_noise(cases: dict[str, dict[str, Tensor]], path: Path) -> None:
    figure, axes = plt.subplots(
        3, 2, figsize=(6.4, 5.6), sharex=True, sharey="row", height_ratios=[2, 1, 1], layout="constrained"
    )
    for column, (name, case) in zip(axes.T, cases.items(), strict=True):
        x, mean, std = case["x"], case["mean"], case["std"]
        column[0].scatter(case["data_x"], case["data_y"], s=3, color=GREY, label="data")
        column[0].plot(x, mean, color=BLUE, label="mean")
        column[0].fill_between(x, mean - 1.96 * std, mean + 1.96 * std, color=BLUE, alpha=0.2, label="95 % band")
        column[0].set_title(f"{name} noise")
        column[1].plot(x, case["entropy"], color=RED)
        column[2].plot(x, case["eig"], color=GREEN)
        column[2].set_xlabel("x")
        for axis in column:
            axis.axvspan(-0.5, 0.5, color="orange", alpha=0.12)
            axis.axvspan(3, 5, color=GREY, alpha=0.15)
    axes[0, 0].set_ylim(-3, 3)
    axes[0, 0].legend(loc="lower left", fontsize=8, ncols=3)
    for axis, label in zip(axes[:, 0], ("y", "entropy, nats", "EIG, nats"), strict=True):
        axis.set_ylabel(label)
    figure.supxlabel("orange: the middle, noisy on the right; grey: no data", fontsize=10)
    save(figure, path)


# ------------------------------------------------------------------------------------------------------- figure: models


def wave(x: Tensor) -> Tensor:
    return torch.sin(3 * x) + 0.5 * x


def wave_data(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two clusters, [-2.5, -0.5] and [1, 2.5], with Gaussian noise of deviation 0.2."""
    x = 3.5 * torch.rand(count, 1, generator=generator) - 2.5
    x = torch.where(x > -0.5, x + 1.5, x)
    return x, wave(x) + 0.2 * torch.randn(x.shape, generator=generator)


def perceptron() -> nn.Module:
    """The features of a plain deep kernel: two hidden layers of 32, two features, nothing bounded."""
    return nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


def gp_predictive(gp: ExactGP | SVGP, x: Tensor) -> tuple[Tensor, Tensor]:
    """A mixture of one: mean and variance of an observation, (1, N, 1) each."""
    mean, var = gp.predict(x)
    return mean[None], (var + gp.noise.detach())[None]


MODELS = {
    "Exact GP": lambda: ExactGP(Kernel(1, 1)),
    "Exact DKL": lambda: ExactGP(Kernel(2, 1), features=perceptron()),
    "SVGP": lambda: SVGP(1, 1, num_inducing=20),
    "SV DKL": lambda: SVGP(1, 1, num_inducing=20, features=perceptron()),
    "SV DKL, ResNet, bi-Lipschitz, dropout": lambda: SVGP(1, 1, num_inducing=20, features=ResNetFeatures(1)),
    "Deep ensemble of 5": lambda: DeepEnsemble(1, 1, gain=6.0),
}


def log_likelihood(mean: Tensor, var: Tensor, y: Tensor) -> Tensor:
    """Of observations under the mixture of the members: 2 x (M, N, 1), (N, 1) -> (N,)."""
    log_p = -0.5 * ((y - mean).square() / var + (2 * math.pi * var).log())[..., 0]
    return torch.logsumexp(log_p, 0) - math.log(len(mean))


def model_case(name: str, seed: int, steps: int = 500) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Train on 100 points; band over a grid, and calibration on 2000 held-out points and in the gap."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    x, y = wave_data(100, generator)
    held_out = wave_data(2000, generator)
    gap_x = 1.5 * torch.rand(2000, 1, generator=generator) - 0.5
    gap = gap_x, wave(gap_x) + 0.2 * torch.randn(gap_x.shape, generator=generator)

    model = MODELS[name]()
    start = time.perf_counter()
    if isinstance(model, DeepEnsemble):
        model.fit(x, y, steps=2 * steps)
        predict = model.predict
    else:
        model.fit(x, y, steps=steps, lr=0.01)
        predict = lambda x: gp_predictive(model, x)  # noqa: E731
    seconds = time.perf_counter() - start

    def band(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = predict(x)
        return mean.mean(0)[:, 0], (var.mean(0) + mean.var(0, correction=0)).sqrt()[:, 0]

    def coverage(x: Tensor, y: Tensor) -> float:
        mean, std = band(x)
        return float(((y[:, 0] - mean).abs() < 1.96 * std).float().mean())

    grid = torch.linspace(-4.5, 4.5, 451)
    mean, std = band(grid[:, None])
    curves = {"x": grid, "mean": mean, "std": std, "data_x": x[:, 0], "data_y": y[:, 0]}
    summary = {
        "train_seconds": seconds,
        "held_out_nll": -float(log_likelihood(*predict(held_out[0]), held_out[1]).mean()),
        "coverage_95": coverage(*held_out),
        "gap_nll": -float(log_likelihood(*predict(gap[0]), gap[1]).mean()),
        "gap_coverage_95": coverage(*gap),
    }
    return curves, summary


def draw_models(cases: dict[str, tuple[dict[str, Tensor], dict[str, float]]], path: Path) -> None:
    figure, axes = plt.subplots(2, 3, figsize=(8.4, 5.4), sharex=True, sharey=True, layout="constrained")
    for axis, (name, (curves, summary)) in zip(axes.flat, cases.items(), strict=True):
        x, mean, std = curves["x"], curves["mean"], curves["std"]
        axis.plot(x, wave(x), color=GREY, linestyle="--", linewidth=1, label="truth")
        axis.scatter(curves["data_x"], curves["data_y"], s=5, color=GREY, label="data")
        axis.plot(x, mean, color=BLUE, label="mean")
        axis.fill_between(x, mean - 1.96 * std, mean + 1.96 * std, color=BLUE, alpha=0.2, label="95 % band")
        axis.set_title(name, fontsize=10)
        text = (
            f"trained in {summary['train_seconds']:.1f} s\n"
            f"held out: NLL {summary['held_out_nll']:.2f}, {100 * summary['coverage_95']:.0f} % in band\n"
            f"in the gap: {100 * summary['gap_coverage_95']:.0f} % in band"
        )
        axis.text(0.98, 0.03, text, transform=axis.transAxes, fontsize=8, ha="right")
    axes[0, 0].set_ylim(-8, 5.5)
    axes[0, 0].legend(loc="upper left", fontsize=8, ncols=2)
    save(figure, path)


# -------------------------------------------------------------------------------------------------------- figure: decay


NOISE_VARIANCE, LENGTHSCALE = 0.1, 0.3
SMOOTHNESS = {"matern32": 1.5, "matern52": 2.5}


def minimax_exponent(kernel: str) -> float:
    """Of epsilon_n = n ** -exponent, Proposition 2 with one input: a rate for a distance, not for its square."""
    return 1 / (2 + 1 / SMOOTHNESS[kernel])


def prior(kernel: str) -> ExactGP:
    gp = ExactGP(Matern(1, 1, SMOOTHNESS[kernel])).double()
    with torch.no_grad():
        gp.kernel.raw_lengthscale.fill_(inverse_softplus(LENGTHSCALE))
        gp.raw_noise.fill_(inverse_softplus(NOISE_VARIANCE - gp.MIN_NOISE))
    return gp


@torch.no_grad()
def decay_random(kernel: str, counts: list[int], seed: int, repeats: int = 5) -> Tensor:
    """Mean EIG over [0, 1] after n uniform observations, (counts,). It does not depend on what was observed."""
    generator = torch.Generator().manual_seed(seed)
    gp, grid = prior(kernel), torch.linspace(0, 1, 512, dtype=torch.float64)[:, None]
    eig = torch.zeros(repeats, len(counts), dtype=torch.float64)
    for repeat in range(repeats):
        x = torch.rand(max(counts), 1, dtype=torch.float64, generator=generator)
        for column, count in enumerate(counts):
            gp.condition(x[:count], torch.zeros(count, 1))
            eig[repeat, column] = gaussian_eig(gp.predict(grid)[1], gp.noise).mean()
    return eig.mean(0)


@torch.no_grad()
def decay_active(kernel: str, counts: list[int]) -> Tensor:
    """The same, each observation where EIG is largest: rank-one updates of the posterior covariance on the grid."""
    gp, grid = prior(kernel), torch.linspace(0, 1, 512, dtype=torch.float64)[:, None]
    covariance = gp.kernel(grid, grid)[0]
    eig = []
    for count in range(1, max(counts) + 1):
        column = covariance[:, covariance.diagonal().argmax()].clone()
        covariance -= torch.outer(column, column) / (column.max() + gp.noise)
        if count in counts:
            eig.append(gaussian_eig(covariance.diagonal()[:, None], gp.noise).mean())
    return torch.stack(eig)


def log_slope(counts: list[int], values: Tensor) -> float:
    """Least squares on log-log over the later half of the counts, where the rate has set in."""
    half = len(counts) // 2
    return float(np.polyfit(np.log(counts[half:]), values[half:].log().numpy(), 1)[0])


def draw_decay(curves: dict[str, dict[str, Tensor]], counts: list[int], path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.2), sharey=True, layout="constrained")
    for axis, (kernel, curve) in zip(axes, curves.items(), strict=True):
        rate, n = minimax_exponent(kernel), torch.tensor(counts, dtype=torch.float64)
        for name, color in (("random", BLUE), ("active", GREEN)):
            label = f"{name} sampling, slope {log_slope(counts, curve[name]):.2f}"
            axis.loglog(counts, curve[name], color=color, marker="o", markersize=3, label=label)
        for power, style, label in ((1, ":", "minimax rate"), (2, "--", "its square")):
            line = curve["random"][-1] * (n / n[-1]) ** (-power * rate)
            axis.loglog(counts, line, color=GREY, linestyle=style, label=f"{label}, slope {-power * rate:.2f}")
        axis.set(xlabel="observations n", title=f"Matérn, smoothness {SMOOTHNESS[kernel]}")
        axis.legend(fontsize=8, loc="lower left")
    axes[0].set(ylabel="mean EIG, nats", ylim=(2e-4, None))
    save(figure, path)


# ----------------------------------------------------------------------------------------------------------------- main


def write_csv(path: Path, header: list[str], rows: Iterable[Iterable]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow([f"{float(cell):.6g}" if isinstance(cell, float | Tensor) else cell for cell in row])


def curve_rows(name: str, curves: dict[str, Tensor], keys: tuple[str, ...]) -> Iterable[tuple]:
    return ((name, *row) for row in zip(*(curves[key] for key in keys), strict=True))


def main(args: Args) -> None:
    torch.set_num_threads(1)
    args.figures.mkdir(parents=True, exist_ok=True)
    args.results.mkdir(parents=True, exist_ok=True)
    start, done, total = time.time(), 0, 2 + len(MODELS) + 2 * len(SMOOTHNESS)

    def progress(what: str) -> None:
        nonlocal done
        done += 1
        print(f"\r[{done:2d}/{total}] {time.time() - start:4.0f} s  {what:60s}", end="", flush=True)

    cases = {}
    for name in ("homoskedastic", "heteroskedastic"):
        cases[name] = noise_case(name == "heteroskedastic", args.seed)
        progress(f"noise: {name}")
    draw_noise(cases, args.figures / "regression_noise.png")
    curve_keys, data_keys = ("x", "mean", "std", "entropy", "eig"), ("data_x", "data_y")
    rows = [row for name, case in cases.items() for row in curve_rows(name, case, curve_keys)]
    write_csv(args.results / "regression_noise.csv", ["noise", *curve_keys], rows)
    rows = [row for name, case in cases.items() for row in curve_rows(name, case, data_keys)]
    write_csv(args.results / "regression_noise_data.csv", ["noise", "x", "y"], rows)

    models = {}
    for name in MODELS:
        models[name] = model_case(name, args.seed)
        progress(f"models: {name}")
    draw_models(models, args.figures / "regression_models.png")
    rows = [row for name, (curves, _) in models.items() for row in curve_rows(name, curves, ("x", "mean", "std"))]
    write_csv(args.results / "regression_models.csv", ["model", "x", "mean", "std"], rows)
    shared = models["Exact GP"][0]  # every model saw the same data
    rows = zip(shared["data_x"], shared["data_y"], strict=True)
    write_csv(args.results / "regression_models_data.csv", ["x", "y"], rows)
    summary_keys = list(models["Exact GP"][1])
    rows = ((name, *summary.values()) for name, (_, summary) in models.items())
    write_csv(args.results / "regression_models_summary.csv", ["model", *summary_keys], rows)

    counts, decay = [2**k for k in range(2, 12)], {}
    for kernel in SMOOTHNESS:
        decay[kernel] = {"random": decay_random(kernel, counts, args.seed)}
        progress(f"decay: {kernel}, random")
        decay[kernel]["active"] = decay_active(kernel, counts)
        progress(f"decay: {kernel}, active")
    draw_decay(decay, counts, args.figures / "regression_decay.png")
    rows = [(k, n, *row) for k, c in decay.items() for n, *row in zip(counts, c["random"], c["active"], strict=True)]
    write_csv(args.results / "regression_decay.csv", ["kernel", "n", "eig_random", "eig_active"], rows)

    print(f"\n\nnoise: region means over {', '.join(REGIONS)}")
    for name, case in cases.items():
        eig, entropy = region_means(case, "eig"), region_means(case, "entropy")
        print(f"  {name:16s} EIG     " + "  ".join(f"{value:7.4f}" for value in eig.values()), end="")
        print(f"   middle/quiet {eig['noisy middle'] / eig['quiet']:.2f}, gap/data {eig['gap'] / eig['data']:.1f}")
        print(f"  {name:16s} entropy " + "  ".join(f"{value:7.4f}" for value in entropy.values()))
    print(f"models: {', '.join(summary_keys)}")
    for name, (_, summary) in models.items():
        print(f"  {name:38s}" + "  ".join(f"{value:6.2f}" for value in summary.values()))
    print("decay: slopes of EIG over the later half of n")
    for kernel, curve in decay.items():
        rate, slopes = minimax_exponent(kernel), {name: log_slope(counts, values) for name, values in curve.items()}
        print(f"  {kernel}: random {slopes['random']:.2f}, active {slopes['active']:.2f}", end="")
        print(f"; minimax rate {-rate:.2f}, its square {-2 * rate:.2f}")
    print(f"figures in {args.figures}, tables in {args.results}, {time.time() - start:.0f} s")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
