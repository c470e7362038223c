"""gp_models against GPyTorch in float64, against its own limits, and on degenerate data."""

import math

import gpytorch
import pytest
import torch
from torch import nn

from gp_models import SVGP, ExactGP, Kernel, ResNetFeatures, Standardizer, cholesky

LENGTHSCALES = torch.tensor([[0.7, 1.3, 2.0], [1.1, 0.6, 0.9]], dtype=torch.float64)  # (P, D)
OUTPUTSCALES = torch.tensor([1.7, 0.8], dtype=torch.float64)
NOISES = torch.tensor([0.05, 0.2], dtype=torch.float64)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def data(count=60, dtype=torch.float64):
    x = torch.randn(count, 3, dtype=dtype)
    y = torch.stack([torch.sin(2 * x[:, 0]) + x[:, 1], x[:, 2] ** 2], 1) + 0.1 * torch.randn(count, 2, dtype=dtype)
    return x, y


def set_hyperparameters(gp, outputscales=OUTPUTSCALES):
    gp.kernel.lengthscale = LENGTHSCALES[:, None]
    gp.kernel.outputscale = outputscales[:, None, None]
    gp.scaled_noise = NOISES


def gpytorch_kernel(name, output, outputscales=OUTPUTSCALES):
    if name == "rbf":
        base = gpytorch.kernels.RBFKernel(ard_num_dims=3)
    else:
        base = gpytorch.kernels.MaternKernel(nu={"matern32": 1.5, "matern52": 2.5}[name], ard_num_dims=3)
    kernel = gpytorch.kernels.ScaleKernel(base).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = LENGTHSCALES[output], outputscales[output]
    return kernel


@pytest.mark.parametrize("name", ["rbf", "matern32", "matern52"])
def test_kernel_equals_gpytorch(name):
    kernel = Kernel(3, 2, name).double()
    kernel.lengthscale, kernel.outputscale = LENGTHSCALES[:, None], OUTPUTSCALES[:, None, None]
    x, z = data()[0], torch.randn(17, 3, dtype=torch.float64)
    for output in range(2):
        theirs = gpytorch_kernel(name, output)(x, z).to_dense()
        torch.testing.assert_close(kernel(x, z)[output], theirs, atol=1e-12, rtol=0)
    torch.testing.assert_close(kernel(x, x).diagonal(dim1=1, dim2=2), kernel.diagonal(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["rbf", "matern32", "matern52"])
def test_kernel_gradient_is_finite_at_zero_distance(name):
    kernel, x = Kernel(3, 1, name), torch.zeros(4, 3)
    kernel(x, x).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in kernel.parameters())


def test_unknown_kernel_is_named():
    with pytest.raises(ValueError, match="unknown kernel 'cubic'"):
        Kernel(1, 1, "cubic")


class GPyTorchExact(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood, kernel):
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@pytest.mark.parametrize("name", ["rbf", "matern52"])
def test_exact_gp_equals_gpytorch(name):
    x, y = data()
    new = torch.randn(25, 3, dtype=torch.float64)
    gp = ExactGP(3, 2, name).double()
    set_hyperparameters(gp)
    gp.condition(x, y)
    mean, var = gp.predict(new)
    total = 0.0
    for output in range(2):
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = NOISES[output]
        model = GPyTorchExact(x, y[:, output], likelihood, gpytorch_kernel(name, output)).double()
        model.train()
        mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        total += mll(model(x), y[:, output]) * len(x)
        model.eval()
        with torch.no_grad():
            posterior = model(new)
        torch.testing.assert_close(mean[:, output], posterior.mean, atol=1e-8, rtol=0)
        torch.testing.assert_close(var[:, output], posterior.variance, atol=1e-8, rtol=0)
    torch.testing.assert_close(gp.log_marginal_likelihood(x, y), total, atol=1e-8, rtol=0)


class GPyTorchSVGP(gpytorch.models.ApproximateGP):
    def __init__(self, inducing, kernel):
        q = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, q, learn_inducing_locations=True))
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@pytest.mark.parametrize("name", ["rbf", "matern32"])
def test_svgp_equals_gpytorch(name):
    """Same jitter on both sides: ours is relative to the kernel's diagonal, which is 1 here."""
    x, y = data()
    new = torch.randn(25, 3, dtype=torch.float64)
    ones = torch.ones(2, dtype=torch.float64)
    gp = SVGP(3, 2, num_inducing=15, kernel=name).double()
    set_hyperparameters(gp, outputscales=ones)
    gp.initialized.fill_(True)  # keep the scales at 1 and Z where it is
    with torch.no_grad():
        gp.q_mean.normal_()
        gp.q_sqrt.copy_(0.3 * torch.randn(2, 15, 15).tril() + torch.eye(15))
    mean, var = gp.predict(new)
    total = 0.0
    for output in range(2):
        model = GPyTorchSVGP(gp.inducing.detach().clone(), gpytorch_kernel(name, output, ones)).double()
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = NOISES[output]
        q = model.variational_strategy._variational_distribution
        q.variational_mean.data, q.chol_variational_covar.data = gp.q_mean[output, :, 0].data, gp.q_sqrt[output].data
        model.variational_strategy.variational_params_initialized.fill_(1)
        with gpytorch.settings.variational_cholesky_jitter(double_value=1e-8):
            model.train()
            elbo = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=1000)
            total += elbo(model(x), y[:, output]) * 1000
            model.eval()
            with torch.no_grad():
                posterior = model(new)
        torch.testing.assert_close(mean[:, output], posterior.mean, atol=1e-8, rtol=0)
        torch.testing.assert_close(var[:, output], posterior.variance, atol=1e-6, rtol=0)
    torch.testing.assert_close(gp.elbo(x, y, num_data=1000), total, atol=0, rtol=1e-6)


def test_svgp_with_all_data_as_inducing_points_is_the_exact_gp():
    x, y = data()
    new = torch.randn(25, 3, dtype=torch.float64)
    exact, sparse = ExactGP(3, 2).double(), SVGP(3, 2, num_inducing=len(x)).double()
    for gp in (exact, sparse):
        set_hyperparameters(gp)
        gp.fit_scales(x, y)
    sparse.choose_inducing(x)
    assert torch.equal(sparse.inducing.sort(0).values, sparse.in_scale(x).sort(0).values)
    exact.condition(x, y)
    sparse.condition(x, y)
    for ours, theirs in zip(sparse.predict(new), exact.predict(new), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    torch.testing.assert_close(sparse.collapsed_bound(x, y), exact.log_marginal_likelihood(x, y), atol=1e-4, rtol=0)


def test_collapsed_bound_tops_the_trained_elbo_and_the_closed_form_attains_it():
    x, y = data()
    gp = SVGP(3, 2, num_inducing=12).double()
    gp.initialize(x, y)
    bound = gp.collapsed_bound(x, y)
    start = gp.elbo(x, y, len(x))
    optimizer = torch.optim.Adam([gp.q_mean, gp.q_sqrt], lr=0.03)
    for _ in range(2000):
        optimizer.zero_grad()
        loss = -gp.elbo(x, y, len(x))
        loss.backward()
        optimizer.step()
        assert -loss <= bound + 1e-6
    trained = gp.elbo(x, y, len(x))
    assert bound - trained < 0.01 * (bound - start)
    gp.condition(x, y)
    torch.testing.assert_close(gp.elbo(x, y, len(x)), bound, atol=1e-5, rtol=0)
    exact = ExactGP(3, 2).double()
    exact.fit_scales(x, y)
    assert bound < exact.log_marginal_likelihood(x, y)


def test_mini_batches_estimate_the_elbo_without_bias():
    x, y = data(40)
    gp = SVGP(3, 2, num_inducing=8).double()
    gp.fit(x, y, steps=5)
    parts = torch.stack([gp.elbo(x[i : i + 10], y[i : i + 10], num_data=40) for i in range(0, 40, 10)])
    torch.testing.assert_close(parts.mean(), gp.elbo(x, y, num_data=40))


def test_elbo_by_mini_batches_alone_learns():
    """Nothing but Adam on `elbo`, as a reader of the docstring would do; targets far from zero mean and unit scale."""
    x, y = data(300, torch.float32)
    y = 50 + 10 * y
    gp = SVGP(3, 2, num_inducing=32, learn_inducing=True)
    optimizer = torch.optim.Adam(gp.parameters(), lr=0.02, fused=True)
    for _ in range(400):
        batch = torch.randint(300, (64,))
        optimizer.zero_grad()
        (-gp.elbo(x[batch], y[batch], num_data=300)).backward()
        optimizer.step()
    mean, var = gp.predict(x)
    assert mean.shape == var.shape == (300, 2)
    assert ((mean - y).square().mean(0) < 0.1 * y.var(0)).all()


def test_bounds_are_in_the_units_of_the_targets():
    """log p(c y) = log p(y) - N log c per output."""
    x, y = data()
    for gp, bound in ((ExactGP(3, 2), "log_marginal_likelihood"), (SVGP(3, 2, 10), "collapsed_bound")):
        gp = gp.double()
        values = []
        for factor in (1.0, 8.0):
            torch.manual_seed(0)
            gp.fit_scales(x, factor * y)
            if isinstance(gp, SVGP):
                gp.choose_inducing(x)
            values.append(getattr(gp, bound)(x, factor * y))
        assert (values[0] - values[1]).item() == pytest.approx(2 * len(x) * math.log(8), abs=1e-6)


def test_float32_is_close_to_float64():
    """Same hyper-parameters and inducing points; q(v) solved and predictions made in either precision."""
    x, y = data(200)
    double, single = SVGP(3, 2, num_inducing=32).double(), SVGP(3, 2, num_inducing=32)
    double.fit(x, y, steps=50)
    single.load_state_dict(double.state_dict())
    single.condition(x.float(), y.float())
    mean, var = single.predict(x.float())
    assert mean.dtype == var.dtype == single.noise.dtype == torch.float32
    torch.testing.assert_close(mean.double(), double.predict(x)[0], atol=0.01, rtol=0)
    torch.testing.assert_close(var.double(), double.predict(x)[1], atol=1e-3, rtol=0.02)


@pytest.mark.parametrize("fused", [False, True])
def test_prediction_follows_every_change_of_the_parameters(fused):
    x, y = data()
    gp = SVGP(3, 2, num_inducing=10).double()
    gp.fit(x, y, steps=2)
    optimizer = torch.optim.Adam(gp.parameters(), lr=0.1, fused=fused)
    before = gp.predict(x)[0]
    assert torch.equal(before, gp.predict(x)[0])
    factors = gp._cache[1]
    gp.predict(x)
    assert gp._cache[1] is factors  # nothing was computed again
    (-gp.elbo(x, y, len(x))).backward()
    gp.predict(x)
    optimizer.step()
    after = gp.predict(x)[0]
    assert not torch.allclose(before, after)
    gp._cache = None
    assert torch.equal(after, gp.predict(x)[0])
    gp.q_mean.data.zero_()  # an edit that no version counter sees
    torch.testing.assert_close(gp.predict(x)[0], gp.out_scale.mean.expand(len(x), -1))


def test_inducing_points_are_spread_over_the_data():
    x = torch.cat([torch.randn(500, 1) * 0.01, torch.tensor([[3.0], [-3.0], [5.0]])])
    gp = SVGP(1, 1, num_inducing=6)
    gp.initialize(x, torch.sin(x))
    chosen = gp.inducing * gp.in_scale.scale + gp.in_scale.mean
    for far in (3.0, -3.0, 5.0):
        assert (chosen - far).abs().min() < 1e-3


def spectral_norms(weights):
    return torch.stack([torch.linalg.matrix_norm(weight, 2) for weight in weights])


def test_spectral_norm_bound_holds_after_training_and_is_soft():
    x, y = data(80, torch.float32)
    features = ResNetFeatures(3, coefficient=0.95)
    with torch.no_grad():
        features.layers[1].weight.mul_(0.1)
    assert torch.equal(features.bounded_weights()[1], features.layers[1].weight)
    gp = SVGP(3, 2, num_inducing=20, features=features)
    gp.fit(x, 5 * y, steps=150, lr=0.03)
    raw = spectral_norms([layer.weight for layer in features.layers])
    assert (raw > 0.95).any(), "the bound was never active: the test would say nothing"
    assert (spectral_norms(features.bounded_weights()) <= 0.95 + 1e-5).all()
    with torch.no_grad():
        assert (spectral_norms(features.bounded_weights()) <= 0.95 + 1e-5).all()
        features.layers[1].weight.mul_(5)  # the kept matrices must follow
        assert (spectral_norms(features.bounded_weights()) <= 0.95 + 1e-5).all()


def test_residual_blocks_keep_distances():
    features = ResNetFeatures(32, coefficient=0.5, depth=1).eval()
    with torch.no_grad():
        features.layers[0].weight.copy_(torch.eye(32))
        features.layers[1].weight.mul_(10)
        x, z = torch.randn(200, 32), torch.randn(200, 32)
        ratio = (features(x) - features(z)).norm(dim=1) / (0.5 * (x - z)).norm(dim=1)
    assert (ratio >= 0.5 - 1e-5).all() and (ratio <= 1.5 + 1e-5).all()


@pytest.mark.parametrize("model", ["exact", "sparse"])
def test_deep_kernel_trains_end_to_end(model):
    x, y = data(80)
    gp = ExactGP(3, 2, features=ResNetFeatures(3)) if model == "exact" else SVGP(3, 2, 20, features=ResNetFeatures(3))
    gp = gp.double()
    weights = [layer.weight.detach().clone() for layer in gp.features.layers]
    gp.fit(x, y, steps=100, lr=0.02)
    for layer, weight in zip(gp.features.layers, weights, strict=True):
        assert not torch.allclose(layer.weight, weight)
    mean, _ = gp.predict(x)
    assert ((mean - y).square().mean(0) < 0.2 * y.var(0)).all()
    gp.train()  # dropout must not reach a prediction
    assert torch.equal(gp.predict(x)[0], mean)
    assert gp.training


def test_any_module_can_be_the_features():
    gp = SVGP(3, 2, 10, features=nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 4)))
    gp.fit(*data(50, torch.float32), steps=3)
    assert gp.kernel.lengthscale.shape == (2, 1, 4)


MODELS = {
    "exact": lambda: ExactGP(3, 2),
    "sparse": lambda: SVGP(3, 2, num_inducing=10),
    "deep": lambda: SVGP(3, 2, num_inducing=10, features=ResNetFeatures(3)),
}
DEGENERATE = {
    "one point": (torch.zeros(1, 3), torch.ones(1, 2)),
    "duplicates": (torch.ones(30, 3), torch.randn(30, 2, generator=torch.Generator().manual_seed(0))),
    "constant target": (torch.randn(30, 3, generator=torch.Generator().manual_seed(0)), torch.full((30, 2), 7.0)),
    "huge offset": (1e4 + torch.rand(30, 3, generator=torch.Generator().manual_seed(0)), torch.full((30, 2), -1e5)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("model", MODELS)
def test_degenerate_data_gives_a_finite_result(model, case, dtype):
    x, y = (tensor.to(dtype) for tensor in DEGENERATE[case])
    gp = MODELS[model]().to(dtype)
    gp.fit(x, y, steps=20)
    mean, var = gp.predict(torch.cat([x, x + 100]))
    assert torch.isfinite(mean).all() and torch.isfinite(var).all() and (var > 0).all()
    if case != "duplicates":
        torch.testing.assert_close(mean[: len(x)], y, atol=0.1, rtol=1e-4)
    assert (var[len(x) :] >= var[: len(x)] * 0.99).all()  # far from the data nothing is better known than on it


@pytest.mark.parametrize("model", MODELS)
def test_nan_is_refused_with_its_row(model):
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    y[13, 1] = torch.nan
    with pytest.raises(ValueError, match="y has a value that is not finite in row 13"):
        MODELS[model]().fit(x, y)
    y[13, 1] = 0.0
    x[4, 0] = torch.inf
    with pytest.raises(ValueError, match="x has a value that is not finite in row 4"):
        MODELS[model]().fit(x, y)


def test_wrong_shapes_are_refused():
    gp = SVGP(3, 2, num_inducing=5)
    for x, y, name in (
        (torch.randn(9, 4), torch.randn(9, 2), "x .* 3 columns"),
        (torch.randn(9, 3), torch.randn(9), "y .* 2 columns"),
        (torch.randn(0, 3), torch.randn(0, 2), "x .* at least one row"),
    ):
        with pytest.raises(ValueError, match=name):
            gp.fit(x, y)


def test_nan_in_a_mini_batch_is_refused():
    gp = SVGP(3, 2, num_inducing=5)
    x, y = data(20, torch.float32)
    gp.elbo(x, y, num_data=20)
    y[3] = torch.nan
    with pytest.raises(ValueError, match=r"y .* row 3"):
        gp.elbo(x, y, num_data=20)


def test_cholesky_adds_jitter_only_where_it_must_and_names_what_it_cannot_save():
    a = torch.randn(2, 5, 5, dtype=torch.float64)
    fine = a @ a.mT + torch.eye(5)
    assert torch.equal(cholesky(fine, "fine"), torch.linalg.cholesky(fine))
    singular = torch.ones(5, 5)
    factor = cholesky(singular, "singular")
    torch.testing.assert_close(factor @ factor.mT, singular, atol=1e-4, rtol=0)
    with pytest.raises(FloatingPointError, match=r"Cholesky of K_ZZ failed: .* not positive definite"):
        cholesky(-torch.eye(3), "K_ZZ")
    with pytest.raises(FloatingPointError, match=r"Cholesky of K_ZZ failed: .* not finite"):
        cholesky(torch.full((3, 3), torch.nan), "K_ZZ")


def test_standardizer_floors_constant_columns():
    x = torch.stack([torch.full((50,), 5.1), torch.randn(50) * 3 + 2], 1)
    scale = Standardizer(2)
    scale.fit(x)
    scaled = scale(x)
    assert scale.scale[0] == 1 and scaled[:, 0].abs().max() < 1e-5
    torch.testing.assert_close(scaled[:, 1].std(correction=0), torch.tensor(1.0))


def test_state_dict_restores_predictions():
    x, y = data(50, torch.float32)
    gp, copy = SVGP(3, 2, 10), SVGP(3, 2, 10)
    gp.fit(x, y, steps=10)
    copy.predict(x)
    copy.load_state_dict(gp.state_dict())
    for ours, theirs in zip(copy.predict(x), gp.predict(x), strict=True):
        assert torch.equal(ours, theirs)
