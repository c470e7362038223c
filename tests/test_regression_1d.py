"""What the three pictures claim, measured; and the whole script once."""

import csv

import gpytorch
import pytest
import torch
from regression_1d import (
    MODELS,
    Args,
    ExactGP,
    Matern,
    decay_active,
    decay_random,
    log_slope,
    main,
    minimax_exponent,
    model_case,
    noise_case,
    noise_level,
    region_means,
)

from gp_models import Kernel, inverse_softplus

LENGTHSCALES = torch.tensor([[0.7, 1.3, 2.0], [1.1, 0.6, 0.9]], dtype=torch.float64)  # (P, D)
OUTPUTSCALES = torch.tensor([1.7, 0.8], dtype=torch.float64)
NOISES = torch.tensor([0.05, 0.2], dtype=torch.float64)


class GPyTorchExact(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood, kernel):
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@pytest.mark.parametrize("smoothness", [1.5, 2.5, None])
def test_kernel_and_exact_gp_equal_gpytorch(smoothness):
    """No smoothness: the squared exponential."""
    torch.manual_seed(0)
    x, y, new = (torch.randn(size, dtype=torch.float64) for size in ((60, 3), (60, 2), (25, 3)))
    kernel = Matern(3, 2, smoothness) if smoothness else Kernel(3, 2)
    gp = ExactGP(kernel, in_dim=3, out_dim=2).double()
    with torch.no_grad():
        kernel.raw_lengthscale.copy_(inverse_softplus(LENGTHSCALES[:, None]))
        kernel.raw_outputscale.copy_(inverse_softplus(OUTPUTSCALES[:, None, None]))
        gp.raw_noise.copy_(inverse_softplus(NOISES - gp.MIN_NOISE))
    gp.condition(x, y)
    mean, var = gp.predict(new)
    total = 0.0
    for output in range(2):
        if smoothness:
            base = gpytorch.kernels.MaternKernel(nu=smoothness, ard_num_dims=3)
        else:
            base = gpytorch.kernels.RBFKernel(ard_num_dims=3)
        theirs = gpytorch.kernels.ScaleKernel(base).double()
        theirs.base_kernel.lengthscale, theirs.outputscale = LENGTHSCALES[output], OUTPUTSCALES[output]
        torch.testing.assert_close(kernel(x, new)[output], theirs(x, new).to_dense(), atol=1e-12, rtol=0)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = NOISES[output]
        model = GPyTorchExact(x, y[:, output], likelihood, theirs).double()
        model.train()
        total += gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(x), y[:, output]) * len(x)
        model.eval()
        with torch.no_grad():
            posterior = model(new)
        torch.testing.assert_close(mean[:, output], posterior.mean, atol=1e-8, rtol=0)
        torch.testing.assert_close(var[:, output], posterior.variance, atol=1e-8, rtol=0)
    torch.testing.assert_close(gp.log_marginal_likelihood(x, y), total, atol=1e-8, rtol=0)


@pytest.mark.parametrize("smoothness", [1.5, 2.5])
def test_gradient_of_the_kernel_is_finite_at_zero_distance(smoothness):
    kernel, x = Matern(3, 1, smoothness), torch.zeros(4, 3)
    kernel(x, x).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in kernel.parameters())


def test_entropy_rises_with_noise_and_eig_does_not():
    case = noise_case(heteroskedastic=True, seed=1001)
    eig, entropy = region_means(case, "eig"), region_means(case, "entropy")
    assert eig["noisy middle"] <= 1.2 * eig["quiet"]
    assert eig["gap"] >= 5 * eig["data"]
    assert entropy["noisy middle"] > entropy["quiet"] + 1


def test_noise_level_is_flat_or_a_bump():
    x = torch.linspace(-6, 6, 101)
    assert (noise_level(x, heteroskedastic=False) == 0.1).all()
    level = noise_level(x, heteroskedastic=True)
    assert level[50] == pytest.approx(0.5) and (level[x.abs() > 1.25] < 0.101).all()


@pytest.mark.parametrize("name", MODELS)
def test_models_are_calibrated_on_their_data(name):
    _, summary = model_case(name, seed=1001, steps=200)
    assert 0.85 < summary["coverage_95"] < 0.999
    assert summary["held_out_nll"] < 0.3  # a Gaussian of the targets' own deviation has 1.5


@pytest.mark.parametrize("kernel", ["matern32", "matern52"])
def test_eig_decays_at_the_square_of_the_minimax_rate(kernel):
    counts = [2**k for k in range(2, 11)]
    random, active = decay_random(kernel, counts, seed=1001, repeats=2), decay_active(kernel, counts)
    assert log_slope(counts, random) == pytest.approx(-2 * minimax_exponent(kernel), abs=0.15)
    assert log_slope(counts, active) == pytest.approx(-2 * minimax_exponent(kernel), abs=0.15)
    assert (active < random).all()


def test_script_writes_every_picture_and_table(tmp_path, capsys):
    main(Args(seed=1001, figures=tmp_path / "figures", results=tmp_path / "results"))
    assert "[12/12]" in capsys.readouterr().out
    pictures = {path.name for path in (tmp_path / "figures").iterdir() if path.stat().st_size > 20000}
    assert pictures == {"regression_noise.png", "regression_models.png", "regression_decay.png"}
    with (tmp_path / "results" / "regression_models_summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == list(MODELS)
    with (tmp_path / "results" / "regression_noise.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2 * 551
