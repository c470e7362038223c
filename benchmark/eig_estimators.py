"""Which estimator of the ensemble's EIG? Each candidate against numerical integration, with its cost.

    python benchmark/eig_estimators.py        # the table of benchmark/regression.md, as results/eig_estimators.csv

The EIG of a deep ensemble is the Jensen-Shannon divergence of its members, H[mixture] - mean H[member], and the entropy
of a Gaussian mixture has no closed form. Members are drawn at random: means `spread * N(0, 1)` and log-deviations
`0.3 * min(1, spread) * N(0, 1)`, in 1 and 2 dimensions. The reference is a sum over a fine grid.
"""

import csv
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from ptsbe_sac_maze import mixture_eig

Estimator = Callable[[Tensor, Tensor], Tensor]  # mean and variance (M, N, D) -> nats (N,)
MEMBERS, DRAWS, SPREADS = 5, 100, (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def log_density(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """log N(x | mean, diag var), summed over the last dimension."""
    return -0.5 * ((x - mean).square() / var + var.log() + math.log(2 * math.pi)).sum(-1)


def member_entropy(var: Tensor) -> Tensor:
    return 0.5 * (var.log() + math.log(2 * math.pi * math.e)).sum(-1).mean(0)  # (N,)


def integrated(mean: Tensor, var: Tensor) -> Tensor:
    """H[mixture] by a Riemann sum over a grid that reaches 9 deviations beyond the outermost members."""
    _, count, dim = mean.shape
    points = 20001 if dim == 1 else 501
    entropies = []
    for n in range(count):
        low = (mean[:, n] - 9 * var[:, n].sqrt()).amin(0)
        high = (mean[:, n] + 9 * var[:, n].sqrt()).amax(0)
        axes = [torch.linspace(*map(float, ends), points, dtype=mean.dtype) for ends in zip(low, high, strict=True)]
        grid = torch.cartesian_prod(*axes).reshape(-1, dim)  # (G, D)
        log_p = torch.logsumexp(log_density(grid, mean[:, n, None], var[:, n, None]), 0) - math.log(len(mean))  # (G,)
        cell = math.prod(float(axis[1] - axis[0]) for axis in axes)
        entropies.append(-(log_p.exp() * log_p).sum() * cell)
    return torch.stack(entropies) - member_entropy(var)


def monte_carlo(samples: int) -> Estimator:
    def estimate(mean: Tensor, var: Tensor) -> Tensor:
        """Mean log-ratio of member to mixture, as many draws from each member (stratified)."""
        x = mean + var.sqrt() * torch.randn(samples, *mean.shape, dtype=mean.dtype)  # (S, M, N, D)
        log_p = log_density(x[:, :, None], mean, var)  # (S, M, M, N), draws of member i under member j
        own = log_p.diagonal(dim1=1, dim2=2).mean((0, 2))  # (N,)
        return own + math.log(len(mean)) - torch.logsumexp(log_p, 2).mean((0, 1))

    return estimate


def pairwise(distance: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Estimator:
    """-mean_i log mean_j exp(-distance_ij), Kolchinsky and Tracey (2017)."""

    def estimate(mean: Tensor, var: Tensor) -> Tensor:
        d = distance(mean[:, None], mean[None], var[:, None], var[None]).sum(-1)  # (M, M, N)
        return math.log(len(mean)) - torch.logsumexp(-d, 1).mean(0)

    return estimate


def kl(m1: Tensor, m2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
    return 0.5 * ((v1 + (m1 - m2).square()) / v2 - 1 + v2.log() - v1.log())


def bhattacharyya(m1: Tensor, m2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
    v = 0.5 * (v1 + v2)
    return 0.125 * (m1 - m2).square() / v + 0.5 * (v.log() - 0.5 * (v1.log() + v2.log()))


def jensen_renyi(mean: Tensor, var: Tensor) -> Tensor:
    """Quadratic Renyi entropies, closed for mixtures (Wang et al., 2009; the utility of MAX)."""
    log_overlap = log_density(mean[:, None], mean[None], var[:, None] + var[None])  # (M, M, N)
    mixture = -(torch.logsumexp(log_overlap.flatten(0, 1), 0) - 2 * math.log(len(mean)))
    return mixture + log_overlap.diagonal().mean(-1)


def moment_matching(mean: Tensor, var: Tensor) -> Tensor:
    total = var.mean(0) + mean.var(0, correction=0)
    return 0.5 * (total.log() + math.log(2 * math.pi * math.e)).sum(-1) - member_entropy(var)


ESTIMATORS = {
    "pairwise, 2 x Bhattacharyya: `mixture_eig`": mixture_eig,
    "pairwise, KL / 2": pairwise(lambda *gaussians: 0.5 * kl(*gaussians)),
    "pairwise, KL (upper bound)": pairwise(kl),
    "pairwise, Bhattacharyya (lower bound)": pairwise(bhattacharyya),
    "Jensen-Renyi, order 2": jensen_renyi,
    "moment matching (unbounded)": moment_matching,
    "Monte Carlo, 8 per member": monte_carlo(8),
    "Monte Carlo, 32 per member": monte_carlo(32),
}


def microseconds(estimate: Estimator, mean: Tensor, var: Tensor) -> float:
    times = []
    for _ in range(20):
        start = time.perf_counter()
        estimate(mean, var)
        times.append(1e6 * (time.perf_counter() - start))
    return sorted(times)[len(times) // 2]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    truth, errors = {}, {name: {} for name in ESTIMATORS}
    for dim in (1, 2):
        for spread in SPREADS:
            draws = DRAWS if dim == 1 else DRAWS // 5
            mean = spread * torch.randn(MEMBERS, draws, dim, dtype=torch.float64)
            var = (0.6 * min(1.0, spread) * torch.randn(MEMBERS, draws, dim, dtype=torch.float64)).exp()
            truth[dim, spread] = reference = integrated(mean, var)
            for name, estimate in ESTIMATORS.items():
                errors[name][dim, spread] = (estimate(mean, var) - reference).square().mean().sqrt()
            print(f"\rintegrated: {dim}-D, spread {spread:<5g}", end="", file=sys.stderr)
    print(file=sys.stderr)
    columns = [(dim, spread) for dim in (1, 2) for spread in SPREADS]
    rows = [["root-mean-square error, nats", *[f"{d}-D, {s:g}" for d, s in columns], "cost, µs"]]
    rows.append(["*mean of the true EIG*", *[f"*{truth[c].mean():.4f}*" for c in columns], ""])
    mean, var = torch.randn(MEMBERS, 1000, 3), torch.rand(MEMBERS, 1000, 3) + 0.5
    for name, estimate in ESTIMATORS.items():
        cells = [f"{errors[name][c]:.4f}" for c in columns]
        rows.append([name, *cells, f"{microseconds(estimate, mean, var):.0f}"])
    with (ROOT / "benchmark" / "results" / "eig_estimators.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
