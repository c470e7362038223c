"""Gaussian-process regression for dynamics models: exact, sparse variational, and with a deep kernel.

Every model maps `(N, in_dim)` inputs to `(N, out_dim)` targets with independent outputs, computed in one batch:
matrices carry the output as their first dimension, `(P, N, N)`. Inputs and targets are standardised inside, so
hyper-parameters are in units of standard deviations and predictions in the units of the data.

    gp = SVGP(in_dim=3, out_dim=2, num_inducing=32)
    gp.fit(x, y, steps=100)             # all the data at once: collapsed bound (Titsias, 2009)
    mean, var = gp.predict(x_new)       # of the latent function; add gp.noise for an observation

    loss = -gp.elbo(x_batch, y_batch, num_data=len(x))      # or by mini-batches (Hensman et al., 2013)
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KernelName = Literal["rbf", "matern32", "matern52"]


def inverse_softplus(value: float | Tensor) -> Tensor:
    value = torch.as_tensor(value)
    return value + torch.log(-torch.expm1(-value))


def check_data(name: str, tensor: Tensor, columns: int) -> None:
    if tensor.ndim != 2 or tensor.shape[1] != columns or len(tensor) == 0:
        raise ValueError(f"{name} must have at least one row and {columns} columns, its shape is {tuple(tensor.shape)}")
    if not torch.isfinite(tensor).all():
        row = int((~torch.isfinite(tensor)).any(1).nonzero()[0])
        raise ValueError(f"{name} has a value that is not finite in row {row}")


def cholesky(matrix: Tensor, name: str, jitter: float = 0.0) -> Tensor:
    """Lower factor of `matrix + jitter * mean diagonal * I`. The jitter grows, up to 1e-2, only where that fails."""
    diagonal_mean = matrix.diagonal(dim1=-2, dim2=-1).detach().mean(-1)[..., None]
    while jitter <= 1e-2:
        shift = torch.diag_embed((jitter * diagonal_mean).expand(matrix.shape[:-1]))
        factor, info = torch.linalg.cholesky_ex(matrix + shift if jitter > 0 else matrix)
        if not info.any():
            return factor
        jitter = 10 * max(jitter, torch.finfo(matrix.dtype).eps)
    finite = bool(torch.isfinite(matrix).all())
    reason = "is not positive definite, even with jitter 1e-2" if finite else "has entries that are not finite"
    raise FloatingPointError(f"Cholesky of {name} failed: the matrix, {tuple(matrix.shape)}, {reason}")


def inverse_triangular(factor: Tensor, upper: bool) -> Tensor:
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=upper)


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


class Standardizer(nn.Module):
    """Column-wise `(x - mean) / scale`. A column that does not vary tells nothing of its scale and keeps scale 1."""

    def __init__(self, dim: int, floor: float = 1e-6):
        super().__init__()
        self.floor = floor  # deviations below floor * (1 + |mean|) count as none
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        x = x.to(self.mean.dtype)
        mean, std = x.mean(0), x.std(0, correction=0)
        self.mean.copy_(mean)
        self.scale.copy_(torch.where(std > self.floor * (1 + mean.abs()), std, torch.ones_like(std)))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.mean.dtype) - self.mean) / self.scale


class Kernel(nn.Module):
    """Stationary kernel with one length-scale per input (ARD), for P outputs: `(N, D), (M, D) -> (P, N, M)`."""

    def __init__(self, in_dim: int, out_dim: int, name: KernelName = "rbf"):
        super().__init__()
        if name not in ("rbf", "matern32", "matern52"):
            raise ValueError(f"unknown kernel {name!r}: choose rbf, matern32 or matern52")
        self.name = name
        self.raw_lengthscale = nn.Parameter(inverse_softplus(1.0).repeat(out_dim, 1, in_dim))
        self.raw_outputscale = nn.Parameter(inverse_softplus(1.0).repeat(out_dim, 1, 1))

    @property
    def lengthscale(self) -> Tensor:
        return F.softplus(self.raw_lengthscale)  # (P, 1, D)

    @lengthscale.setter
    def lengthscale(self, value: float | Tensor) -> None:
        with torch.no_grad():
            self.raw_lengthscale.copy_(inverse_softplus(value))

    @property
    def outputscale(self) -> Tensor:
        return F.softplus(self.raw_outputscale)  # (P, 1, 1)

    @outputscale.setter
    def outputscale(self, value: float | Tensor) -> None:
        with torch.no_grad():
            self.raw_outputscale.copy_(inverse_softplus(value))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        lengthscale = self.lengthscale
        x, z = x / lengthscale, z / lengthscale  # (P, N, D), (P, M, D)
        norms = x.square().sum(-1)[:, :, None] + z.square().sum(-1)[:, None, :]
        exponent = torch.baddbmm(-0.5 * norms, x, z.mT)  # -|x - z|^2 / 2, (P, N, M)
        if self.name == "rbf":
            return self.outputscale * exponent.clamp_max(0).exp()
        two_nu = 3 if self.name == "matern32" else 5
        r = (-2 * two_nu * exponent.clamp_max(-1e-20)).sqrt()  # the bound keeps the root's gradient finite at 0
        polynomial = 1 + r if self.name == "matern32" else 1 + r + r.square() / 3
        return self.outputscale * polynomial * torch.exp(-r)

    def diagonal(self, x: Tensor) -> Tensor:
        return self.outputscale[:, :, 0].expand(-1, len(x))  # (P, N)


class ResNetFeatures(nn.Module):
    """Fully connected residual network `h <- h + g(h)` with dropout, for a deep kernel that keeps distances.

    The spectral norm of every weight is bounded *softly*: a matrix is divided by `norm / coefficient` only where its
    norm exceeds the coefficient. With a coefficient below 1 a residual block is then bi-Lipschitz, between
    `1 - coefficient` and `1 + coefficient`: inputs far from the data stay far in feature space (van Amersfoort et al.,
    2021).
    """

    def __init__(self, in_dim: int, width: int = 32, depth: int = 2, coefficient: float = 0.95, dropout: float = 0.05):
        super().__init__()
        self.coefficient, self.dropout = coefficient, dropout
        self.layers = nn.ModuleList([nn.Linear(in_dim, width), *(nn.Linear(width, width) for _ in range(depth))])
        self._cache: tuple[list[Tensor], list[Tensor]] | None = None

    def bounded_weights(self) -> list[Tensor]:
        """The matrices that the network applies. Without gradients they are kept until the weights change."""
        weights = [layer.weight for layer in self.layers]
        if not torch.is_grad_enabled() and self._cache is not None and all(map(same, self._cache[0], weights)):
            return self._cache[1]
        norms = [torch.linalg.matrix_norm(weight, ord=2) for weight in weights]
        bounded = [w / (norm / self.coefficient).clamp_min(1) for w, norm in zip(weights, norms, strict=True)]
        if not torch.is_grad_enabled():
            self._cache = [weight.clone() for weight in weights], bounded
        return bounded

    def forward(self, x: Tensor) -> Tensor:
        weights, biases = self.bounded_weights(), [layer.bias for layer in self.layers]
        h = F.linear(x, weights[0], biases[0])  # (N, width)
        for weight, bias in zip(weights[1:], biases[1:], strict=True):
            h = h + F.dropout(F.relu(F.linear(h, weight, bias)), self.dropout, self.training)
        return h


class GaussianProcess(nn.Module):
    """What the exact and the sparse model share: scales, kernel on (deep) features, noise, cached prediction."""

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        kernel: KernelName = "rbf",
        features: nn.Module | None = None,
        min_noise: float = 1e-4,
    ):
        super().__init__()
        self.min_noise = min_noise  # variance, in units of the standardised targets
        self.features = features if features is not None else nn.Identity()
        with torch.no_grad():
            feature_dim = self.features(torch.zeros(1, in_dim)).shape[-1]
        self.kernel = Kernel(feature_dim, out_dim, kernel)
        self.raw_noise = nn.Parameter(inverse_softplus(0.1).repeat(out_dim))
        self.in_scale, self.out_scale = Standardizer(in_dim), Standardizer(out_dim)
        self._cache: tuple[list[Tensor], tuple[Tensor, ...]] | None = None

    @property
    def scaled_noise(self) -> Tensor:
        return self.min_noise + F.softplus(self.raw_noise)  # (P,), of the standardised targets

    @scaled_noise.setter
    def scaled_noise(self, value: float | Tensor) -> None:
        with torch.no_grad():
            self.raw_noise.copy_(inverse_softplus(torch.as_tensor(value) - self.min_noise))

    @property
    def noise(self) -> Tensor:
        """Variances of the observation noise in the units of the targets, `(out_dim,)`."""
        return self.scaled_noise * self.out_scale.scale.square()

    def check(self, x: Tensor, y: Tensor) -> None:
        check_data("x", x, len(self.in_scale.mean))
        check_data("y", y, len(self.out_scale.mean))

    def standardize(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled inputs `(N, D)` and targets `(P, N)`, and log |d y_scaled / d y|, so bounds hold for y as it is."""
        self.check(x, y)
        return self.in_scale(x), self.out_scale(y).mT, -len(x) * self.out_scale.scale.log().sum()

    def fit_scales(self, x: Tensor, y: Tensor) -> None:
        self.check(x, y)
        self.in_scale.fit(x)
        self.out_scale.fit(y)

    def maximize(self, objective: Callable[[], Tensor], steps: int, lr: float) -> None:
        optimizer = torch.optim.Adam(self.parameters(), lr=lr)
        self.train()
        for _ in range(steps):
            optimizer.zero_grad()
            (-objective()).backward()
            optimizer.step()
        self.eval()

    def factors(self) -> tuple[Tensor, ...]:
        """What prediction needs beside the new inputs; depends on parameters and buffers alone."""
        raise NotImplementedError

    def cached_factors(self) -> tuple[Tensor, ...]:
        # Values are compared, not version counters: fused optimizers change parameters without raising theirs.
        state = [*self.parameters(), *self.buffers()]
        if self._cache is None or not all(map(same, self._cache[0], state)):
            self._cache = [tensor.clone() for tensor in state], self.factors()
        return self._cache[1]

    def latent(self, x: Tensor, factors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Mean and variance of the scaled latent function at scaled inputs, both `(P, N)`."""
        raise NotImplementedError

    @torch.no_grad()
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the latent function in the units of the targets, both `(N, out_dim)`, of x's type."""
        training = self.training
        if training:
            self.eval()  # no dropout
        mean, var = self.latent(self.in_scale(x), self.cached_factors())
        if training:
            self.train()
        scale = self.out_scale.scale
        tiny = torch.finfo(var.dtype).eps  # cancellation can leave a variance slightly below zero
        mean, var = self.out_scale.mean + scale * mean.mT, scale.square() * var.mT.clamp_min(tiny)
        return mean.to(x.dtype), var.to(x.dtype)


class ExactGP(GaussianProcess):
    """GP regression on all the data, O(n^3). With `features`, exact deep-kernel learning (Wilson et al., 2016)."""

    def __init__(self, in_dim: int, out_dim: int, kernel: KernelName = "rbf", features=None, min_noise: float = 1e-4):
        super().__init__(in_dim, out_dim, kernel, features, min_noise)
        self.register_buffer("train_x", torch.empty(0, in_dim), persistent=False)
        self.register_buffer("train_y", torch.empty(0, out_dim), persistent=False)

    def fit(self, x: Tensor, y: Tensor, steps: int = 100, lr: float = 0.05) -> None:
        """Standardise, maximise the log marginal likelihood over the hyper-parameters, condition on the data."""
        self.fit_scales(x, y)
        self.maximize(lambda: self.log_marginal_likelihood(x, y), steps, lr)
        self.condition(x, y)

    def condition(self, x: Tensor, y: Tensor) -> None:
        """Take this data, keeping scales and hyper-parameters."""
        self.check(x, y)
        self.train_x, self.train_y = x.to(self.in_scale.mean.dtype), y.to(self.in_scale.mean.dtype)

    def covariance_factor(self, h: Tensor) -> Tensor:
        covariance = self.kernel(h, h) + torch.diag_embed(self.scaled_noise[:, None].expand(-1, len(h)))
        return cholesky(covariance, "K_XX + noise")  # (P, N, N)

    def log_marginal_likelihood(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(y | X), summed over outputs, in the units of y."""
        x, y, log_jacobian = self.standardize(x, y)
        L = self.covariance_factor(self.features(x))
        residual = torch.linalg.solve_triangular(L, y[:, :, None], upper=False)  # (P, N, 1)
        log_det = 2 * L.diagonal(dim1=1, dim2=2).log().sum()
        return -0.5 * (residual.square().sum() + log_det + y.numel() * math.log(2 * math.pi)) + log_jacobian

    def factors(self) -> tuple[Tensor, ...]:
        x, y, _ = self.standardize(self.train_x, self.train_y)
        h = self.features(x)
        L = self.covariance_factor(h)
        return h, L, torch.cholesky_solve(y[:, :, None], L)

    def latent(self, x: Tensor, factors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        h, L, alpha = factors
        K = self.kernel(h, self.features(x))  # (P, N, N_new)
        explained = torch.linalg.solve_triangular(L, K, upper=False).square().sum(1)
        return (K.mT @ alpha)[:, :, 0], self.kernel.diagonal(x) - explained


class SVGP(GaussianProcess):
    """Sparse variational GP: m inducing inputs Z, shared by the outputs, and q(v) = N(q_mean, q_sqrt q_sqrt^T).

    v whitens the inducing values, u = L v with K_ZZ = L L^T, so that its prior is N(0, I). With A = L^-1 K_ZX,

        q(f) = N(A^T q_mean, diag(K_XX - A^T A + A^T q_sqrt q_sqrt^T A)).

    With `features`, Z lives in input space and goes through them as the data does (deep kernel, trained end to end).
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        num_inducing: int,
        kernel: KernelName = "rbf",
        features: nn.Module | None = None,
        learn_inducing: bool = False,
        min_noise: float = 1e-4,
    ):
        super().__init__(in_dim, out_dim, kernel, features, min_noise)
        self.inducing = nn.Parameter(torch.randn(num_inducing, in_dim), requires_grad=learn_inducing)  # Z, scaled
        self.q_mean = nn.Parameter(torch.zeros(out_dim, num_inducing, 1))
        self.q_sqrt = nn.Parameter(torch.eye(num_inducing).repeat(out_dim, 1, 1))  # its lower triangle counts
        self.register_buffer("initialized", torch.tensor(False))

    def initialize(self, x: Tensor, y: Tensor) -> None:
        """Scales and inducing inputs from data. `elbo` does it with its first batch where nobody did it before."""
        self.fit_scales(x, y)
        self.choose_inducing(x)
        self.initialized.fill_(True)

    @torch.no_grad()
    def choose_inducing(self, x: Tensor) -> None:
        """Z from the data by greedy pivoted Cholesky: each time the point that those before it explain least.

        Where the data has fewer than m distinct points the rest of Z is drawn around them.
        """
        x = self.in_scale(x)
        h = self.features(x)
        residual = torch.ones(len(x), dtype=x.dtype, device=x.device)  # prior correlation, averaged over outputs
        columns = torch.zeros(len(self.inducing), len(x), dtype=x.dtype, device=x.device)
        chosen = []
        for i in range(min(len(self.inducing), len(x))):
            pivot = int(residual.argmax())
            if residual[pivot] < 1e-6:
                break
            correlation = (self.kernel(h[pivot : pivot + 1], h) / self.kernel.outputscale).mean(0)[0]  # (N,)
            columns[i] = (correlation - columns[:i, pivot] @ columns[:i]) / residual[pivot].sqrt()
            residual = (residual - columns[i].square()).clamp_min(0)
            residual[pivot] = 0
            chosen.append(pivot)
        missing = len(self.inducing) - len(chosen)
        near = x[torch.randint(len(x), (missing,), device=x.device)]
        self.inducing.copy_(torch.cat([x[chosen], near + torch.randn_like(near)]))

    def whiten(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A = L^-1 K_ZX `(P, m, N)` and the variance that Z leaves unexplained, diag(K_XX - A^T A) `(P, N)`."""
        m = len(self.inducing)
        h = self.features(torch.cat([self.inducing, x]))
        K = self.kernel(h[:m], h)  # [K_ZZ, K_ZX], (P, m, m + N)
        A = self.inverse_inducing_factor(K[:, :, :m]) @ K[:, :, m:]
        return A, (self.kernel.diagonal(x) - A.square().sum(1)).clamp_min(0)

    def inverse_inducing_factor(self, K_ZZ: Tensor) -> Tensor:
        """L^-1. Multiplying by it is twice as fast as a batched triangular solve for each right-hand side."""
        L = cholesky(K_ZZ, "K_ZZ", jitter=1e-8 if K_ZZ.dtype == torch.float64 else 1e-5)
        return inverse_triangular(L, upper=False)

    def elbo(self, x: Tensor, y: Tensor, num_data: int) -> Tensor:
        """Unbiased estimate from a mini-batch of the bound E_q[log p(y | f)] - KL(q(v) || p(v)) <= log p(y)."""
        if not self.initialized:
            self.initialize(x, y)
        x, y, log_jacobian = self.standardize(x, y)
        A, unexplained = self.whiten(x)
        q_sqrt, noise = self.q_sqrt.tril(), self.scaled_noise[:, None]
        projected = A.mT @ torch.cat([self.q_mean, q_sqrt], dim=2)  # (P, N, 1 + m)
        mean, var = projected[:, :, 0], unexplained + projected[:, :, 1:].square().sum(2)  # (P, N)
        log_likelihood = -0.5 * (torch.log(2 * math.pi * noise) + ((y - mean).square() + var) / noise)
        log_det = 2 * q_sqrt.diagonal(dim1=1, dim2=2).abs().log().sum()
        kl = 0.5 * (q_sqrt.square().sum() + self.q_mean.square().sum() - self.q_mean.numel() - log_det)
        return num_data / len(x) * (log_likelihood.sum() + log_jacobian) - kl

    def collapsed(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """B = I + A A^T / noise `(P, m, m)`, b = A y / noise `(P, m, 1)` and diag(K_XX - A^T A) `(P, N)`."""
        A, unexplained = self.whiten(x)
        noise = self.scaled_noise[:, None, None]
        B = torch.eye(A.shape[1], dtype=A.dtype, device=A.device) + A @ A.mT / noise
        return B, A @ y[:, :, None] / noise, unexplained

    def collapsed_bound(self, x: Tensor, y: Tensor) -> Tensor:
        """The ELBO of all the data at its optimal q(v), log N(y | 0, A^T A + noise I) - tr(K_XX - A^T A) / 2 noise."""
        x, y, log_jacobian = self.standardize(x, y)
        B, b, unexplained = self.collapsed(x, y)
        L_B, noise = cholesky(B, "I + A A^T / noise"), self.scaled_noise[:, None]
        c = torch.linalg.solve_triangular(L_B, b, upper=False)  # (P, m, 1)
        log_det = 2 * L_B.diagonal(dim1=1, dim2=2).log().sum() + len(x) * noise.log().sum()
        quadratic = (y.square() / noise).sum() - c.square().sum()
        trace = (unexplained / noise).sum()
        return -0.5 * (y.numel() * math.log(2 * math.pi) + log_det + quadratic + trace) + log_jacobian

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> None:
        """Set q(v) to its optimum for this data, N(B^-1 A y / noise, B^-1), keeping Z, scales and hyper-parameters."""
        self.eval()
        x, y, _ = self.standardize(x, y)
        B, b, _ = self.collapsed(x, y)
        # A lower factor of B^-1 without inverting: with J the reversal of rows, J B J = R R^T gives (J R^-T J).
        R = cholesky(B.flip(1, 2), "I + A A^T / noise")
        q_sqrt = inverse_triangular(R.mT, upper=True).flip(1, 2)
        self.q_sqrt.copy_(q_sqrt)
        self.q_mean.copy_(q_sqrt @ (q_sqrt.mT @ b))

    def fit(self, x: Tensor, y: Tensor, steps: int = 100, lr: float = 0.05) -> float:
        """Standardise, choose Z, maximise the collapsed bound over the hyper-parameters, set q(v) in closed form.

        Called again it goes on from the hyper-parameters it has, and from Z where Z is learned. Returns the negative
        bound per row.
        """
        if self.inducing.requires_grad and self.initialized:
            self.fit_scales(x, y)
        else:
            self.initialize(x, y)
        self.maximize(lambda: self.collapsed_bound(x, y), steps, lr)
        self.condition(x, y)
        with torch.no_grad():
            return -self.collapsed_bound(x, y).item() / len(x)

    def factors(self) -> tuple[Tensor, ...]:
        h = self.features(self.inducing)
        L_inverse = self.inverse_inducing_factor(self.kernel(h, h))
        return h, L_inverse.mT @ self.q_mean, torch.cat([L_inverse, self.q_sqrt.tril().mT @ L_inverse], dim=1)

    def latent(self, x: Tensor, factors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        h, alpha, projections = factors  # (m, H), (P, m, 1), (P, 2m, m)
        K = self.kernel(h, self.features(x))  # (P, m, N)
        prior, posterior = (projections @ K).square().unflatten(1, (2, -1)).sum(2).unbind(1)  # |A|^2, |q_sqrt^T A|^2
        return (K.mT @ alpha)[:, :, 0], self.kernel.diagonal(x) - prior + posterior
