"""Sparse variational Gaussian processes for dynamics models, on the inputs or, as a deep kernel, on features of them.

A model maps `(N, in_dim)` inputs to `(N, out_dim)` targets with independent outputs, computed in one batch: matrices
carry the output as their first dimension, `(P, N, N)`. Inputs and targets are standardised inside, so hyper-parameters
are in units of standard deviations and predictions in the units of the data.

    gp = SVGP(in_dim=3, out_dim=2, num_inducing=32)
    gp.fit(x, y, steps=100)             # all the data at once: collapsed bound (Titsias, 2009)
    mean, var = gp.predict(x_new)       # of the latent function; add gp.noise for an observation

    loss = -gp.elbo(x_batch, y_batch, num_data=len(x))      # or by mini-batches (Hensman et al., 2013)
"""

import math
from inspect import unwrap

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# -------------------------------------------------------------------------------------------------------------- helpers


JITTER = {torch.float32: 1e-5, torch.float64: 1e-8}  # of K_ZZ, relative to its diagonal


def inverse_softplus(value: float | Tensor) -> Tensor:
    """Positive parameters are held as `raw` with `softplus(raw)` their value; this is the raw of a value."""
    value = torch.as_tensor(value)
    return value + torch.log(-torch.expm1(-value))


def check_data(name: str, tensor: Tensor, columns: int) -> None:
    if tensor.ndim != 2 or tensor.shape[1] != columns or not tensor.is_floating_point():
        raise ValueError(f"{name} must be {columns} columns of floats, it is {tensor.dtype} {tuple(tensor.shape)}")
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
    raise FloatingPointError(f"Cholesky of {name} failed: not finite, or not positive definite even with jitter 1e-2")


def inverse_triangular(factor: Tensor, upper: bool = False) -> Tensor:
    """Multiplying by it is twice as fast as a batched triangular solve for each right-hand side."""
    return torch.linalg.solve_triangular(factor, torch.diag_embed(torch.ones_like(factor[..., 0])), upper=upper)


class EvalCache(nn.Module):
    """In eval mode keeps in `cache` what follows from the parameters alone.

    Switching between train() and eval(), load_state_dict and moves to another device or type drop it. Parameters are
    to be changed in training mode: a change by hand in eval mode goes unseen.
    """

    def __init__(self):
        super().__init__()
        self.cache = None
        self.register_load_state_dict_post_hook(EvalCache.drop_cache)

    def drop_cache(self, *_) -> None:
        self.cache = None

    def train(self, mode: bool = True) -> "EvalCache":  # eval() is train(False)
        self.drop_cache()
        return super().train(mode)

    def _apply(self, *args, **kwargs) -> "EvalCache":  # what to(), double(), cuda() and the like have in common
        self.drop_cache()
        return super()._apply(*args, **kwargs)


class Adam(torch.optim.Adam):
    """torch.optim.Adam without its care for torch's compiler, whose import takes a second of every run."""

    add_param_group, zero_grad = unwrap(torch.optim.Adam.add_param_group), unwrap(torch.optim.Adam.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class Standardizer(nn.Module):
    """Column-wise `(x - mean) / scale`. A column that does not vary tells nothing of its scale and keeps scale 1.

    Until `fit` is called it has the mean 0 and the scales `units`, 1 without them.
    """

    FLOOR = 8.0  # deviations below so many roundings of the mean count as none

    def __init__(self, dim: int, units: tuple[float, ...] | None = None):
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.tensor(units or [1.0] * dim))

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        rounding = max(torch.finfo(x.dtype).eps, torch.finfo(self.mean.dtype).eps)
        x = x.to(self.mean.dtype)
        self.mean.copy_(x.mean(0))
        std = x.std(0, correction=0)
        least = (self.FLOOR * rounding * self.mean.abs()).clamp_min(1e-15)  # variances need its square, in float32 too
        self.scale.copy_(torch.where(std > least, std, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.mean.dtype) - self.mean) / self.scale


# -------------------------------------------------------------------------------------------------- kernel and features


class Kernel(nn.Module):
    """Squared exponential with one length-scale per input (ARD), for P outputs: `(N, D), (M, D) -> (P, N, M)`."""

    def __init__(self, in_dim: int, out_dim: int):
        super().__init__()
        self.raw_lengthscale = nn.Parameter(inverse_softplus(1.0).repeat(out_dim, 1, in_dim))
        self.raw_outputscale = nn.Parameter(inverse_softplus(1.0).repeat(out_dim, 1, 1))

    @property
    def lengthscale(self) -> Tensor:
        return F.softplus(self.raw_lengthscale)  # (P, 1, D)

    @property
    def outputscale(self) -> Tensor:
        return F.softplus(self.raw_outputscale)  # (P, 1, 1)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        lengthscale = self.lengthscale
        x, z = x / lengthscale, z / lengthscale  # (P, N, D), (P, M, D)
        norms = x.square().sum(-1)[:, :, None] + z.square().sum(-1)[:, None, :]
        exponent = torch.baddbmm(-0.5 * norms, x, z.mT)  # -|x - z|^2 / 2, (P, N, M)
        return self.outputscale * exponent.clamp_max(0).exp()


class ResNetFeatures(EvalCache):
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

    def bounded_weights(self) -> list[Tensor]:
        weights = [layer.weight for layer in self.layers]
        return [w / (torch.linalg.matrix_norm(w, ord=2) / self.coefficient).clamp_min(1) for w in weights]

    def forward(self, x: Tensor) -> Tensor:
        keep = not (self.training or torch.is_grad_enabled())
        weights = self.cache if keep and self.cache is not None else self.bounded_weights()
        self.cache = weights if keep else None
        biases = [layer.bias for layer in self.layers]
        h = F.linear(x, weights[0], biases[0])  # (N, width)
        for weight, bias in zip(weights[1:], biases[1:], strict=True):
            h = h + F.dropout(F.relu(F.linear(h, weight, bias)), self.dropout, self.training)
        return h


# ----------------------------------------------------------------------------------------------------------- sparse GP


def spread_rows(kernel: Kernel, h: Tensor, count: int) -> list[int]:
    """At most `count` rows of h by greedy pivoted Cholesky: each time the one that those before it explain least."""
    residual = torch.ones(len(h), dtype=h.dtype, device=h.device)  # prior correlation, averaged over outputs
    columns = torch.zeros(count, len(h), dtype=h.dtype, device=h.device)
    chosen = []
    while len(chosen) < count and residual.max() >= 1e-6:
        i, pivot = len(chosen), int(residual.argmax())
        correlation = (kernel(h[pivot : pivot + 1], h) / kernel.outputscale).mean(0)[0]  # (N,)
        columns[i] = (correlation - columns[:i, pivot] @ columns[:i]) / residual[pivot].sqrt()
        residual = (residual - columns[i].square()).clamp_min(0)
        residual[pivot] = 0
        chosen.append(pivot)
    return chosen


class SVGP(EvalCache):
    """Sparse variational GP: m inducing inputs Z, shared by the outputs, and q(v) = N(q_mean, q_sqrt q_sqrt^T).

    v whitens the inducing values, u = L v with K_ZZ = L L^T, so that its prior is N(0, I). With A = L^-1 K_ZX,

        q(f) = N(A^T q_mean, diag(K_XX - A^T A + A^T q_sqrt q_sqrt^T A)).

    With `features`, a module, Z lives in input space and goes through them as the data does: a deep kernel, trained
    end to end. By `fit`, Z is chosen from the data; `learn_inducing` moves it from there with the hyper-parameters.
    With `units`, one per input, inputs are scaled by these and not by the data.
    """

    MIN_NOISE = 1e-4  # variance, in units of the standardised targets
    length_prior = math.inf  # deviation of a log-normal prior of the length-scales around 1; infinite: none

    def __init__(self, in_dim: int, out_dim: int, num_inducing: int, features=None, learn_inducing=False, units=None):
        super().__init__()
        self.fixed_units = bool(units)
        self.in_scale, self.out_scale = Standardizer(in_dim, units), Standardizer(out_dim)
        self.features = features if features is not None else nn.Identity()
        self.kernel = Kernel(self.features(torch.zeros(1, in_dim)).shape[-1], out_dim)
        self.raw_noise = nn.Parameter(inverse_softplus(0.1).repeat(out_dim))
        self.inducing = nn.Parameter(torch.randn(num_inducing, in_dim), requires_grad=learn_inducing)  # Z, scaled
        self.q_mean = nn.Parameter(torch.zeros(out_dim, num_inducing, 1))
        self.q_sqrt = nn.Parameter(torch.eye(num_inducing).repeat(out_dim, 1, 1))  # its lower triangle counts
        self.register_buffer("initialized", torch.tensor(False))

    @property
    def scaled_noise(self) -> Tensor:
        return self.MIN_NOISE + F.softplus(self.raw_noise)  # (P,), of the standardised targets

    @property
    def noise(self) -> Tensor:
        """Variances of the observation noise in the units of the targets, `(out_dim,)`."""
        return self.scaled_noise * self.out_scale.scale.square()

    def check(self, x: Tensor, y: Tensor) -> None:
        check_data("x", x, len(self.in_scale.mean))
        check_data("y", y, len(self.out_scale.mean))
        if not 0 < len(x) == len(y):
            raise ValueError(f"x and y must have as many rows, at least one, they have {len(x)} and {len(y)}")

    @torch.no_grad()
    def initialize(self, x: Tensor, y: Tensor) -> None:
        """Scales and Z from data; Z that is learned only once. Where data has too few points, more are drawn near."""
        self.check(x, y)
        if not self.fixed_units:
            self.in_scale.fit(x)
        self.out_scale.fit(y)
        if not (self.initialized and self.inducing.requires_grad):
            x, m = self.in_scale(x), len(self.inducing)
            chosen = spread_rows(self.kernel, self.features(x), m)
            near = x[torch.randint(len(x), (m - len(chosen),), device=x.device)]
            self.inducing.copy_(torch.cat([x[chosen], near + torch.randn_like(near)]))
        self.initialized.fill_(True)

    def standardize(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled inputs `(N, D)` and targets `(P, N)`, and log |d y_scaled / d y|, so bounds hold for y as it is."""
        self.check(x, y)
        return self.in_scale(x), self.out_scale(y).mT, -len(x) * self.out_scale.scale.log().sum()

    def whiten(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A = L^-1 K_ZX `(P, m, N)` and the variance that Z leaves unexplained, diag(K_XX - A^T A) `(P, N)`."""
        m = len(self.inducing)
        h = self.features(torch.cat([self.inducing, x]))
        K = self.kernel(h[:m], h)  # [K_ZZ, K_ZX], (P, m, m + N)
        A = inverse_triangular(cholesky(K[:, :, :m], "K_ZZ", JITTER[K.dtype])) @ K[:, :, m:]
        return A, (self.kernel.outputscale[:, 0] - A.square().sum(1)).clamp_min(0)  # K_XX has the output scale there

    def elbo(self, x: Tensor, y: Tensor, num_data: int) -> Tensor:
        """Unbiased estimate from a mini-batch of the bound E_q[log p(y | f)] - KL(q(v) || p(v)) <= log p(y).

        The first batch sets scales and Z where `initialize` was not called before.
        """
        self.train(self.training)  # a step on the parameters follows: nothing may be kept
        if not self.initialized:
            self.initialize(x, y)
        x, y, log_jacobian = self.standardize(x, y)
        A, unexplained = self.whiten(x)
        q_sqrt, noise = self.q_sqrt.tril(), self.scaled_noise[:, None]
        projected = torch.cat([self.q_mean, q_sqrt], dim=2).mT @ A  # (P, 1 + m, N)
        mean, var = projected[:, 0], unexplained + projected[:, 1:].square().sum(1)  # (P, N)
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
        """Standardise, choose Z, maximise bound and prior over the hyper-parameters, set q(v) in closed form.

        Called again it goes on from the hyper-parameters it has, and from Z where Z is learned. Returns the negative
        bound per row.
        """
        self.initialize(x, y)
        optimizer = Adam(self.parameters(), lr)
        self.train()
        for _ in range(steps):
            optimizer.zero_grad()
            log_prior = -0.5 * (self.kernel.lengthscale.log() / self.length_prior).square().sum()
            (-self.collapsed_bound(x, y) - log_prior).backward()
            optimizer.step()
        self.condition(x, y)
        return -self.collapsed_bound(x, y).item() / len(x)

    @torch.no_grad()
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the latent function in the units of the targets, both `(N, out_dim)`, of x's type."""
        check_data("x", x, len(self.in_scale.mean))
        if self.training:  # without dropout, and nothing is kept
            prediction = SVGP.predict(self.eval(), x)
            self.train()
            return prediction
        if self.cache is None:  # what does not depend on x
            h = self.features(self.inducing)
            L_inverse = inverse_triangular(cholesky(self.kernel(h, h), "K_ZZ", JITTER[h.dtype]))
            q_projection = self.q_sqrt.tril().mT @ L_inverse
            self.cache = h, L_inverse.mT @ self.q_mean, torch.cat([L_inverse, q_projection], dim=1)
        h, alpha, projections = self.cache  # (m, H), (P, m, 1), (P, 2m, m)
        K = self.kernel(h, self.features(self.in_scale(x)))  # (P, m, N)
        prior, posterior = (projections @ K).square().unflatten(1, (2, -1)).sum(2).unbind(1)  # |A|^2, |q_sqrt^T A|^2
        mean, var = (K.mT @ alpha)[:, :, 0], self.kernel.outputscale[:, 0] - prior + posterior  # (P, N), standardised
        var = var.clamp_min(torch.finfo(var.dtype).eps)  # cancellation can leave it slightly below zero
        mean, var = self.out_scale.mean + self.out_scale.scale * mean.mT, self.out_scale.scale.square() * var.mT
        return mean.to(x.dtype), var.to(x.dtype)
