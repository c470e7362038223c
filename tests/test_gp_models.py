"""gp_models against GPyTorch in float64, against its own limits, and on degenerate data."""

import copy
import math
import pickle

import gpytorch
import pytest
import torch
from torch import nn

from gp_models import SVGP, Adam, Kernel, ResNetFeatures, Standardizer, cholesky, inverse_softplus

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


@torch.no_grad()
def set_hyperparameters(gp, outputscales=OUTPUTSCALES):
    gp.kernel.raw_lengthscale.copy_(inverse_softplus(LENGTHSCALES[:, None]))
    gp.kernel.raw_outputscale.copy_(inverse_softplus(outputscales[:, None, None]))
    gp.raw_noise.copy_(inverse_softplus(NOISES - gp.MIN_NOISE))


def gpytorch_kernel(output, outputscales=OUTPUTSCALES):
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=3)).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = LENGTHSCALES[output], outputscales[output]
    return kernel


def test_kernel_equals_gpytorch():
    gp = SVGP(3, 2, num_inducing=5).double()
    set_hyperparameters(gp)
    x, z = data()[0], torch.randn(17, 3, dtype=torch.float64)
    for output in range(2):
        theirs = gpytorch_kernel(output)(x, z).to_dense()
        torch.testing.assert_close(gp.kernel(x, z)[output], theirs, atol=1e-12, rtol=0)


def test_kernel_gradient_is_finite_at_zero_distance():
    kernel, x = Kernel(3, 1), torch.zeros(4, 3)
    kernel(x, x).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in kernel.parameters())


class GPyTorchSVGP(gpytorch.models.ApproximateGP):
    def __init__(self, inducing, kernel):
        q = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, q, learn_inducing_locations=True))
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_svgp_equals_gpytorch():
    """Same jitter on both sides: ours is relative to the kernel's diagonal, which is 1 here."""
    x, y = data()
    new = torch.randn(25, 3, dtype=torch.float64)
    ones = torch.ones(2, dtype=torch.float64)
    gp = SVGP(3, 2, num_inducing=15).double()
    set_hyperparameters(gp, outputscales=ones)
    gp.initialized.fill_(True)  # keep the scales at 1 and Z where it is
    with torch.no_grad():
        gp.q_mean.normal_()
        gp.q_sqrt.copy_(0.3 * torch.randn(2, 15, 15).tril() + torch.eye(15))
    mean, var = gp.predict(new)
    total = 0.0
    for output in range(2):
        model = GPyTorchSVGP(gp.inducing.detach().clone(), gpytorch_kernel(output, ones)).double()
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


def exact(gp, x, y, new):
    """Mean, variance and log p(y) of GP regression on all the data, with the scales and hyper-parameters of gp."""
    x, new, y = gp.in_scale(x), gp.in_scale(new), gp.out_scale(y).mT  # y is (P, N)
    covariance = gp.kernel(x, x) + torch.diag_embed(gp.scaled_noise[:, None].expand(-1, len(x)))
    log_p = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y).sum()
    K = gp.kernel(x, new)  # (P, N, N_new)
    mean = (K.mT @ torch.linalg.solve(covariance, y[:, :, None]))[:, :, 0]
    var = gp.kernel.outputscale[:, 0] - (K * torch.linalg.solve(covariance, K)).sum(1)
    scale = gp.out_scale.scale
    return gp.out_scale.mean + scale * mean.mT, scale.square() * var.mT, log_p - len(x) * scale.log().sum()


@torch.no_grad()
def test_svgp_with_all_data_as_inducing_points_is_the_exact_gp():
    x, y = data()
    new = torch.randn(25, 3, dtype=torch.float64)
    gp = SVGP(3, 2, num_inducing=len(x)).double()
    set_hyperparameters(gp)
    gp.initialize(x, y)
    assert torch.equal(gp.inducing.sort(0).values, gp.in_scale(x).sort(0).values)
    gp.condition(x, y)
    mean, var, log_p = exact(gp, x, y, new)
    torch.testing.assert_close(gp.predict(new)[0], mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(gp.predict(new)[1], var, atol=1e-5, rtol=0)
    torch.testing.assert_close(gp.collapsed_bound(x, y), log_p, atol=1e-4, rtol=0)


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
    assert bound < exact(gp, x, y, x)[2]


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


def test_with_units_of_their_own_inputs_are_not_scaled_by_the_data():
    x, y = 5 + 100 * torch.rand(30, 2), torch.rand(30, 1)
    given, free = SVGP(2, 1, 8, units=(0.5, 2.0)), SVGP(2, 1, 8)
    for gp in (given, free):
        gp.fit(x, y, steps=1)
    assert given.in_scale.scale.tolist() == [0.5, 2.0] and given.in_scale.mean.tolist() == [0.0, 0.0]
    assert free.in_scale.scale.min() > 10 and given.out_scale.mean.item() == pytest.approx(y.mean().item())


def test_bounds_are_in_the_units_of_the_targets():
    """log p(c y) = log p(y) - N log c per output."""
    x, y = data()
    gp = SVGP(3, 2, 10).double()
    bounds = []
    for factor in (1.0, 8.0):
        gp.initialize(x, factor * y)
        bounds.append(gp.collapsed_bound(x, factor * y).item())
    assert bounds[0] - bounds[1] == pytest.approx(2 * len(x) * math.log(8), abs=1e-6)


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


def models():
    """A sparse GP and a deep kernel, fitted, that have predicted in eval mode; with data."""
    x, y = data(50, torch.float32)
    for features in (None, ResNetFeatures(3)):
        gp = SVGP(3, 2, num_inducing=10, features=features)
        gp.fit(x, y, steps=3)
        gp.predict(x)
        yield gp, x, y


def same_as_new(gp, x):
    """Whether gp predicts what a model made anew with its state does."""
    features = ResNetFeatures(3) if isinstance(gp.features, ResNetFeatures) else None
    new = SVGP(3, 2, 10, features=features).to(gp.inducing.dtype)
    new.load_state_dict(gp.state_dict())
    return all(torch.equal(ours, theirs) for ours, theirs in zip(gp.predict(x), new.predict(x), strict=True))


@pytest.mark.parametrize("fused", [False, True])
def test_adam_is_that_of_torch_to_the_bit(fused):
    start, target = torch.randn(4, 3), torch.randn(4, 3)
    found = []
    for optimizer_class in (Adam, torch.optim.Adam):
        moved, kept = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        optimizer = optimizer_class([moved, kept], lr=0.1, eps=1e-5, fused=fused)
        for _ in range(20):
            optimizer.zero_grad()
            (moved - target).square().sum().backward()
            optimizer.step()
        assert torch.equal(kept, start)  # it has no gradient
        found.append(moved.detach())
    assert torch.equal(*found) and (found[0] - target).norm() < 0.5 * (start - target).norm()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_prediction_follows_steps_on_the_elbo(fused, training):
    for gp, x, y in models():
        gp.train(training)
        optimizer = torch.optim.Adam(gp.parameters(), lr=0.1, fused=fused)
        for _ in range(3):
            before = gp.predict(x)[0]
            (-gp.elbo(x, y, len(x))).backward()
            optimizer.step()
            assert not torch.allclose(before, gp.predict(x)[0]) and same_as_new(gp, x)
        assert gp.training == training


def test_prediction_follows_whatever_else_changes_the_model():
    for gp, x, y in models():
        before = gp.predict(x)[0]
        gp.fit(x, -y, steps=1)
        assert not torch.allclose(before, gp.predict(x)[0]) and same_as_new(gp, x)
        gp.condition(x, y)
        assert same_as_new(gp, x)
        other = copy.deepcopy(gp)
        other.fit(x, 3 * y, steps=1)
        assert same_as_new(gp, x) and not torch.allclose(gp.predict(x)[0], other.predict(x)[0])
        nn.ModuleList([gp]).load_state_dict(nn.ModuleList([other]).state_dict())  # as a part of something else
        assert torch.equal(gp.predict(x)[0], other.predict(x)[0])
        gp.train()
        with torch.no_grad():
            for parameter in gp.parameters():
                parameter.mul_(1.1)
        gp.eval()
        assert same_as_new(gp, x)
        single = gp.predict(x)[0]
        gp.double()
        assert same_as_new(gp, x.double())
        torch.testing.assert_close(gp.predict(x.double())[0], single.double(), atol=1e-2, rtol=0)
        assert torch.equal(pickle.loads(pickle.dumps(gp)).predict(x)[0], gp.predict(x)[0])


def test_a_prediction_in_training_mode_leaves_it_on():
    for gp, x, _ in models():
        mean = gp.predict(x)[0]
        gp.train()  # dropout must not reach a prediction
        assert torch.equal(gp.predict(x)[0], mean) and gp.training
        with pytest.raises(ValueError):
            gp.predict(x[:, :1])
        assert gp.training and gp.features.training


def test_inducing_points_are_spread_over_the_data():
    x = torch.cat([torch.randn(500, 1) * 0.01, torch.tensor([[3.0], [-3.0], [5.0]])])
    gp = SVGP(1, 1, num_inducing=6)
    gp.initialize(x, torch.sin(x))
    chosen = gp.inducing * gp.in_scale.scale + gp.in_scale.mean
    for far in (3.0, -3.0, 5.0):
        assert (chosen - far).abs().min() < 1e-3


@pytest.mark.parametrize("learned", [False, True])
def test_inducing_points_follow_new_data_unless_they_are_learned(learned):
    x, y = data()
    gp = SVGP(3, 2, num_inducing=10, learn_inducing=learned).double()
    gp.fit(x, y, steps=3)
    chosen = gp.inducing.detach().clone()
    gp.fit(x[30:], y[30:], steps=0)
    assert torch.equal(gp.inducing, chosen) == learned


def spectral_norms(weights):
    return torch.stack([torch.linalg.matrix_norm(weight, 2) for weight in weights])


def test_spectral_norm_bound_holds_after_training_and_is_soft():
    x, y = data(80, torch.float32)
    features = ResNetFeatures(3, coefficient=0.95)
    with torch.no_grad():
        features.layers[1].weight.mul_(0.1)
    torch.testing.assert_close(features.bounded_weights()[1], features.layers[1].weight, atol=0, rtol=0)
    gp = SVGP(3, 2, num_inducing=20, features=features)
    gp.fit(x, 5 * y, steps=150, lr=0.03)
    raw = spectral_norms([layer.weight for layer in features.layers])
    assert (raw > 0.95).any(), "the bound was never active: the test would say nothing"
    assert (spectral_norms(features.bounded_weights()) <= 0.95 + 1e-5).all()


def test_residual_blocks_keep_distances():
    features = ResNetFeatures(32, coefficient=0.5, depth=1).eval()
    with torch.no_grad():
        features.layers[0].weight.copy_(torch.eye(32))
        features.layers[1].weight.mul_(10)
        x, z = torch.randn(200, 32), torch.randn(200, 32)
        ratio = (features(x) - features(z)).norm(dim=1) / (0.5 * (x - z)).norm(dim=1)
    assert (ratio >= 0.5 - 1e-5).all() and (ratio <= 1.5 + 1e-5).all()


def test_deep_kernel_trains_end_to_end():
    x, y = data(80)
    gp = SVGP(3, 2, 20, features=ResNetFeatures(3)).double()
    weights = [layer.weight.detach().clone() for layer in gp.features.layers]
    gp.fit(x, y, steps=100, lr=0.02)
    for layer, weight in zip(gp.features.layers, weights, strict=True):
        assert not torch.allclose(layer.weight, weight)
    assert ((gp.predict(x)[0] - y).square().mean(0) < 0.2 * y.var(0)).all()


def test_any_module_can_be_the_features():
    gp = SVGP(3, 2, 10, features=nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 4)))
    gp.fit(*data(50, torch.float32), steps=3)
    assert gp.kernel.lengthscale.shape == (2, 1, 4)


MODELS = {
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


CALLS = {
    "fit": lambda gp, x, y: gp.fit(x, y, steps=1),
    "elbo": lambda gp, x, y: gp.elbo(x, y, num_data=100),
    "condition": lambda gp, x, y: gp.condition(x, y),
    "predict": lambda gp, x, y: gp.predict(x),
}


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_not_finite_is_refused_with_its_row(call, fitted):
    gp, (x, y) = SVGP(3, 2, num_inducing=5), data(20, torch.float32)
    if fitted:
        gp.fit(x, y, steps=1)
    for value in (torch.nan, torch.inf, -torch.inf):
        bad_x, bad_y = x.clone(), y.clone()
        bad_x[4, 0], bad_y[13, 1] = value, value
        with pytest.raises(ValueError, match="x has a value that is not finite in row 4"):
            CALLS[call](gp, bad_x, y)
        if call != "predict":
            with pytest.raises(ValueError, match="y has a value that is not finite in row 13"):
                CALLS[call](gp, x, bad_y)
    assert all(torch.isfinite(tensor).all() for tensor in gp.state_dict().values())


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_wrong_shapes_and_types_are_refused(call, fitted):
    gp, (x, y) = SVGP(3, 2, num_inducing=5), data(20, torch.float32)
    if fitted:
        gp.fit(x, y, steps=1)
    for bad in (x[:, :1], torch.randn(20, 4), x[0], x[None], x.int()):  # (N, 1) would broadcast
        with pytest.raises(ValueError, match="x must be 3 columns of floats, it is torch"):
            CALLS[call](gp, bad, y)
    if call == "predict":
        assert [len(part) for part in gp.predict(x[:0])] == [0, 0]
        return
    for bad in (y[:, :1], y[:, 0], torch.randn(20, 3), y.long()):
        with pytest.raises(ValueError, match="y must be 2 columns of floats, it is torch"):
            CALLS[call](gp, x, bad)
    for rows_x, rows_y in ((20, 19), (1, 20), (20, 1), (0, 0)):
        with pytest.raises(ValueError, match=f"at least one, they have {rows_x} and {rows_y}"):
            CALLS[call](gp, x[:rows_x], y[:rows_y])


def test_cholesky_adds_jitter_only_where_it_must_and_names_what_it_cannot_save():
    a = torch.randn(2, 5, 5, dtype=torch.float64)
    fine = a @ a.mT + torch.eye(5)
    assert torch.equal(cholesky(fine, "fine"), torch.linalg.cholesky(fine))
    singular = torch.ones(5, 5)
    factor = cholesky(singular, "singular")
    torch.testing.assert_close(factor @ factor.mT, singular, atol=1e-4, rtol=0)
    for bad in (-torch.eye(3), torch.full((3, 3), torch.nan)):
        with pytest.raises(FloatingPointError, match="Cholesky of K_ZZ failed"):
            cholesky(bad, "K_ZZ")


@pytest.mark.parametrize("data_type", [torch.float32, torch.float64])
@pytest.mark.parametrize("own_type", [torch.float32, torch.float64])
def test_standardizer_takes_only_rounding_for_constant(data_type, own_type):
    noise = torch.randn(1000, dtype=torch.float64)
    constant = [torch.full((1000,), value, dtype=torch.float64) for value in (5.1, 0.0, -1e-9, 3e7, 1e-20)]
    eps = max(torch.finfo(data_type).eps, torch.finfo(own_type).eps)
    rounded = 1 + eps * (noise > 0)  # the last digit differs
    scale = Standardizer(6).to(own_type)
    scale.fit(torch.stack([*constant, rounded], 1).to(data_type))
    assert (scale.scale == 1).all()
    assert torch.isfinite(scale(torch.zeros(3, 6))).all()

    varied = torch.stack([2 + 3 * noise, 1e-8 * noise, 1e-8 * (noise + 2), 1e6 + 10 * noise, 1e-12 * noise], 1)
    scale = Standardizer(5).to(own_type)
    scale.fit(varied.to(data_type))
    scaled = scale(varied.to(data_type))
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(5, dtype=own_type), atol=1e-3, rtol=0)


def test_small_deviations_beside_a_large_mean_count_in_float64():
    scale, x = Standardizer(1).double(), 1 + 1e-10 * torch.randn(100, 1, dtype=torch.float64)
    scale.fit(x)
    assert scale(x).std(correction=0).item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_data_of_any_unit_is_learned(unit, dtype):
    x, y = data(100, dtype)
    gp = SVGP(3, 2, num_inducing=20).to(dtype)
    gp.fit(unit * x, unit * y, steps=50)
    mean, var = gp.predict(unit * x)
    assert ((mean - unit * y).square().mean(0) < 0.3 * (unit * y).var(0)).all()
    assert (var > 0).all() and (gp.noise > 0).all() and torch.isfinite(torch.log1p(var / gp.noise)).all()


def test_state_dict_restores_predictions():
    x, y = data(50, torch.float32)
    gp, copy = SVGP(3, 2, 10), SVGP(3, 2, 10)
    gp.fit(x, y, steps=10)
    copy.predict(x)
    copy.load_state_dict(gp.state_dict())
    for ours, theirs in zip(copy.predict(x), gp.predict(x), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", [None, ResNetFeatures])
def test_a_prior_keeps_length_scales_near_1_and_without_it_the_data_decides(kind):
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    y = 3 * x  # a line: the longer the length-scale, the higher the bound
    lengthscales = []
    for prior in (math.inf, 0.3, 0.01):
        torch.manual_seed(0)
        gp = SVGP(1, 1, 10, features=kind and kind(1)).double()
        gp.length_prior = prior
        gp.fit(x, y, steps=60)
        lengthscales.append(gp.kernel.lengthscale.log().abs().mean().item())
    assert lengthscales[0] > 1.2 * lengthscales[1] and lengthscales[2] < 0.05
