"""Both EIGs against numerical integration, and the limits that the mixture's must keep."""

import math

import pytest
import torch
from eig_estimators import integrated
from regression_1d import DeepEnsemble, gaussian_entropy

from ptsbe_ppo_mountaincar import gaussian_eig, mixture_eig


def members(spread, dim, count=20, size=5):
    generator = torch.Generator().manual_seed(0)
    mean = spread * torch.randn(size, count, dim, dtype=torch.float64, generator=generator)
    log_var = 0.6 * min(1.0, spread) * torch.randn(size, count, dim, dtype=torch.float64, generator=generator)
    return mean, log_var.exp()


@pytest.mark.parametrize("var, noise", [(1e-4, 0.5), (0.3, 0.2), (4.0, 0.01)])
def test_gaussian_eig_against_integration(var, noise):
    """H[p(y)] - E_f H[p(y | f)] with f ~ N(0, var), y | f ~ N(f, noise), both entropies by a Riemann sum."""

    def entropy(variance):
        y = torch.linspace(-12, 12, 200001, dtype=torch.float64) * math.sqrt(variance)
        log_p = -0.5 * (y.square() / variance + math.log(2 * math.pi * variance))
        return -(log_p.exp() * log_p).sum() * (y[1] - y[0])

    expected = entropy(var + noise) - entropy(noise)
    ours = gaussian_eig(torch.tensor([[var]], dtype=torch.float64), torch.tensor([noise], dtype=torch.float64))
    torch.testing.assert_close(ours[0], expected, atol=1e-9, rtol=0)


def test_gaussian_eig_sums_over_outputs():
    var, noise = torch.rand(7, 3) + 0.1, torch.rand(3) + 0.1
    expected = sum(gaussian_eig(var[:, [d]], noise[[d]]) for d in range(3))
    torch.testing.assert_close(gaussian_eig(var, noise), expected)


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize(
    "spread, tolerance", [(0.03, 1e-4), (0.1, 1e-3), (0.3, 0.02), (1.0, 0.2), (3.0, 0.25), (30.0, 0.1)]
)
def test_mixture_eig_against_integration(spread, tolerance, dim):
    mean, var = members(spread, dim)
    reference = integrated(mean, var)
    error = (mixture_eig(mean, var) - reference).abs()
    assert error.max() < tolerance
    if spread <= 0.1:  # where the bonus fades it is exact to second order
        assert error.mean() < 0.03 * reference.mean()


def test_mixture_eig_is_zero_for_identical_members():
    mean, var = torch.randn(1, 50, 3).expand(5, -1, -1), torch.rand(1, 50, 3).expand(5, -1, -1) + 1e-3
    assert mixture_eig(mean, var).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 5, 10])
def test_mixture_eig_stays_between_zero_and_log_m(size, dtype):
    for spread in (0.0, 1e-3, 1.0, 1e3, 1e12):
        mean, var = (tensor.to(dtype) for tensor in members(spread, 4, size=size))
        eig = mixture_eig(mean, var)
        assert torch.isfinite(eig).all()
        assert (eig >= -1e-6).all() and (eig <= math.log(size) + 1e-6).all()
    assert (eig > math.log(size) - 1e-6).all()  # members that share nothing


def test_mixture_eig_does_not_depend_on_units_or_order():
    mean, var = members(1.0, 3)
    scale = torch.tensor([1e-3, 1.0, 1e3], dtype=torch.float64)
    eig = mixture_eig(mean, var)
    torch.testing.assert_close(mixture_eig(scale * mean + 7, scale.square() * var), eig)
    torch.testing.assert_close(mixture_eig(mean.flip(0), var.flip(0)), eig)


def test_mixture_eig_sees_members_that_differ_in_variance_alone():
    mean = torch.zeros(2, 1, 1, dtype=torch.float64)
    var = torch.tensor([1.0, 9.0], dtype=torch.float64)[:, None, None]
    assert float(mixture_eig(mean, var)) == pytest.approx(float(integrated(mean, var)), abs=0.05)
    assert mixture_eig(mean, var) > 0.1


def test_gaussian_entropy_equals_torch():
    var = torch.rand(6, 3) + 0.1
    expected = torch.distributions.Normal(torch.zeros(6, 3), var.sqrt()).entropy().sum(-1)
    torch.testing.assert_close(gaussian_entropy(var), expected)


# ------------------------------------------------------------------------------------------------------ deep ensemble


def test_ensemble_forward_equals_its_members_one_by_one():
    torch.manual_seed(0)
    ensemble, x = DeepEnsemble(3, 2, members=4, width=8), torch.randn(4, 10, 3)
    mean, log_var = ensemble(x)
    for m in range(4):
        h = x[m]
        for layer, (weight, bias) in enumerate(ensemble.networks.layers):
            h = h @ weight[m] + bias[m]
            if layer < 2:
                h = h * torch.sigmoid(h)
        torch.testing.assert_close(mean[m], h[:, :2])
        assert (log_var[m] > ensemble.MIN_LOG_VAR).all() and (log_var[m] < ensemble.MAX_LOG_VAR).all()


def test_ensemble_learns_mean_and_noise_in_the_units_of_the_targets():
    torch.manual_seed(0)
    x = 4 * torch.rand(1000, 1) - 2
    noise = torch.where(x > 0, 5.0, 0.5)
    y = torch.cat([100 + 10 * x + noise * torch.randn(1000, 1), torch.full((1000, 1), -1.0)], 1)  # one constant output
    ensemble = DeepEnsemble(1, 2)
    first = ensemble.fit(x, y, steps=1)
    assert ensemble.fit(x, y, steps=600) < first
    mean, var = ensemble.predict(torch.tensor([[-1.0], [1.0]]))  # (M, 2, 2)
    assert mean.shape == (5, 2, 2)
    torch.testing.assert_close(mean.mean(0)[:, 0], torch.tensor([90.0, 110.0]), atol=1.0, rtol=0)
    deviation = var[:, :, 0].sqrt().mean(0)
    assert 0.25 < deviation[0] < 1.5 and 3.5 < deviation[1] < 6.5
    torch.testing.assert_close(mean[..., 1], torch.full((5, 2), -1.0), atol=0.1, rtol=0)


def test_ensemble_members_differ_and_agree_more_with_more_data():
    torch.manual_seed(0)
    x = 2 * torch.rand(2000, 1) - 1
    y = torch.sin(3 * x) + 0.3 * torch.randn(2000, 1)
    levels = []
    for count in (20, 2000):
        ensemble = DeepEnsemble(1, 1, gain=6.0)
        ensemble.fit(x[:count], y[:count], steps=1000)
        levels.append(float(mixture_eig(*ensemble.predict(torch.linspace(-0.9, 0.9, 100)[:, None])).mean()))
    assert levels[1] < 0.2 * levels[0], levels
