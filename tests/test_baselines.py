"""The reactive comparators: VIME's information gain and ICM's curiosity against what they must be, and whole runs."""

import json
import math
import subprocess
import sys
from pathlib import Path

import ppo_icm_unichain as icm
import ppo_vime_unichain as vime
import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence

import ptsbe_ppo_unichain as chain

ROOT = Path(__file__).resolve().parents[1]
SPACES = chain.Unichain().observation_space, chain.Unichain().action_space


# ------------------------------------------------------------------------------------------------------------- VIME


def bayesian_network():
    torch.manual_seed(0)
    network = vime.BayesianNetwork(4, 2, vime.Args(model_width=8, initial_sd=0.3)).double()
    with torch.no_grad():
        network.rho += torch.randn_like(network.rho)
    return network


def test_kl_against_torch_distributions():
    torch.manual_seed(0)
    mean, mean0, rho, rho0 = torch.randn(4, 100, dtype=torch.float64)
    sd, sd0 = F.softplus(rho), F.softplus(rho0)
    expected = kl_divergence(Normal(mean, sd), Normal(mean0, sd0)).sum()
    torch.testing.assert_close(vime.gaussian_kl(mean, sd, mean0, sd0), expected)
    expected = kl_divergence(Normal(mean, sd), Normal(0.0, 0.5)).sum()
    torch.testing.assert_close(vime.gaussian_kl(mean, sd, 0.0, 0.5), expected)


def test_curvature_is_the_hessian_of_the_kl():
    torch.manual_seed(0)
    mu, rho = torch.randn(2, 5, dtype=torch.float64)

    def kl(mu_new, rho_new):
        return vime.gaussian_kl(mu_new, F.softplus(rho_new), mu, F.softplus(rho))

    gradient = torch.func.grad(kl, argnums=(0, 1))(mu, rho)
    assert max(part.abs().max() for part in gradient) < 1e-12
    (h_mu_mu, h_mu_rho), (_, h_rho_rho) = torch.func.hessian(kl, argnums=(0, 1))(mu, rho)
    h_mu, h_rho = vime.kl_hessian(rho)
    torch.testing.assert_close(h_mu_mu, torch.diag(h_mu))
    torch.testing.assert_close(h_rho_rho, torch.diag(h_rho))
    assert h_mu_rho.abs().max() < 1e-12


def test_information_gain_against_the_exact_kl_of_the_step(monkeypatch):
    """All at once by vmap, against one transition at a time by autograd, a real step and the closed form of its KL."""
    network = bayesian_network()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    noise = tuple(part.double() for part in network.draw(6))
    monkeypatch.setattr(network, "draw", lambda rows: noise)
    mu, rho = network.mu.detach(), network.rho.detach()
    h_mu, h_rho = vime.kl_hessian(rho)
    errors = []
    for step_size in (1e-2, 1e-3, 1e-4):
        monkeypatch.setattr(vime, "STEP_SIZE", step_size)
        exact = []
        for i in range(6):
            loss = network.nll(network.mu, network.rho, x[i], y[i], [part[i] for part in noise])
            grad_mu, grad_rho = torch.autograd.grad(loss, [network.mu, network.rho])
            new_mu, new_rho = mu - step_size * grad_mu / h_mu, rho - step_size * grad_rho / h_rho
            new, old = Normal(new_mu, F.softplus(new_rho)), Normal(mu, F.softplus(rho))
            exact.append(kl_divergence(new, old).sum())
        gain = vime.information_gain(network, x, y)
        errors.append(((gain - torch.stack(exact)).abs() / torch.stack(exact)).max())
    assert errors[-1] < 1e-2
    assert errors[0] > 5 * errors[1] > 25 * errors[2]  # the next term is one order higher in lambda


def test_local_reparametrisation_has_the_moments_of_sampled_weights():
    network = bayesian_network()
    x, samples = torch.randn(1, 4, dtype=torch.float64), 200_000
    y = torch.zeros(1, 2, dtype=torch.float64)
    torch.manual_seed(1)
    noise = [torch.randn(1, samples, size, dtype=torch.float64) for size in (8, 2)]
    local = network.nll(network.mu, network.rho, x, y, noise).item()
    sd = F.softplus(network.rho)
    total, rounds = 0.0, 20_000
    with torch.no_grad():
        for _ in range(rounds):
            w1, b1, w2, b2 = network.layers(network.mu + sd * torch.randn(len(sd), dtype=torch.float64))
            predicted = torch.relu(x @ w1 + b1) @ w2 + b2
            total += 0.5 * (predicted / network.args.likelihood_sd).square().sum().item()
    assert local == pytest.approx(total / rounds, rel=0.05)


def test_bayesian_network_learns_and_its_posterior_contracts():
    torch.manual_seed(0)
    x = torch.rand(200, 1) * 2 - 1
    network = vime.BayesianNetwork(1, 1, vime.Args(model_updates=1500, model_lr=1e-2))
    y = x.abs()
    before = vime.information_gain(network, x, y).mean()
    network.fit(x, y)
    predicted = network.nll(network.mu, torch.full_like(network.rho, -20.0), x, y, network.draw(200)).detach()
    assert predicted.mean() * 2 * network.args.likelihood_sd**2 < 0.02  # mean squared error of the mean weights
    assert vime.information_gain(network, x, y).mean() < 0.1 * before
    far = vime.information_gain(network, x + 3, y).mean()
    assert far > 10 * vime.information_gain(network, x, y).mean()


def test_bonus_is_divided_by_the_mean_of_the_recent_medians():
    torch.manual_seed(0)
    model = vime.VIME(*SPACES, vime.Args(median_batches=2, min_pool=5))
    state, action, next_state = transitions(40)
    assert (model.bonus(state, action, next_state) == 0).all()  # no network has been trained yet
    assert model.fit(state[:4], action[:4], next_state[:4]) == {}  # the pool is too small
    assert set(model.fit(state, action, next_state)) == {"negative_elbo"}
    assert model.bonus(state, action, next_state).median() == pytest.approx(1.0)  # the first batch, by its own median
    for _ in range(3):
        model.bonus(state, action, next_state)
    assert len(model.medians) == 2


# -------------------------------------------------------------------------------------------------------------- ICM


LENGTH, QUIET, NOISY = 20, 5, 14  # at QUIET, right leads to QUIET + 1; at NOISY, it leads anywhere


def transitions(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All three actions in all states, the pair (NOISY, right) with a random outcome."""
    generator = torch.Generator().manual_seed(seed)
    state = torch.randint(LENGTH, (count,), generator=generator)
    action = torch.randint(3, (count,), generator=generator)
    next_state = (state + action - 1).clamp(0, LENGTH - 1)
    anywhere = torch.randint(LENGTH, (count,), generator=generator)
    next_state = torch.where((state == NOISY) & (action == 2), anywhere, next_state)
    return state[:, None] / (LENGTH - 1), action, next_state[:, None] / (LENGTH - 1)


def probe(position: int, outcomes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    state = torch.full((len(outcomes), 1), position / (LENGTH - 1))
    return state, torch.full((len(outcomes),), 2), outcomes[:, None] / (LENGTH - 1)


def test_curiosity_falls_on_a_repeated_transition_and_stays_up_on_a_noisy_one():
    torch.manual_seed(0)
    model = icm.ICM(*SPACES, icm.Args(model_updates=800, model_lr=1e-3, state_scale=5.0))
    quiet, noisy = probe(QUIET, torch.tensor([QUIET + 1])), probe(NOISY, torch.arange(LENGTH))
    before = model.bonus(*quiet).mean(), model.bonus(*noisy).mean()
    model.fit(*transitions(400))
    after = model.bonus(*quiet).mean(), model.bonus(*noisy).mean()
    assert after[0] < 0.02 * before[0]
    assert after[1] > 0.5 * before[1]


def test_eig_of_the_same_transitions_falls_on_both():
    def inputs(states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return torch.cat([states, F.one_hot(actions, 3)], -1)

    torch.manual_seed(0)
    model = chain.DeepEnsemble(4, 1, width=32, gain=10.0)
    states, actions, next_states = transitions(400)
    x = torch.cat([inputs(*probe(position, torch.zeros(1))[:2]) for position in (QUIET, NOISY)])  # (2, 4)
    model.fit(inputs(states, actions), next_states - states, 1)
    before = chain.mixture_eig(*model.predict(x))
    model.fit(inputs(states, actions), next_states - states, 800)
    after = chain.mixture_eig(*model.predict(x))
    assert (after < 0.2 * before).all(), (before, after)


def test_inverse_model_reads_the_action_and_shapes_the_encoder():
    torch.manual_seed(0)
    model = icm.ICM(*SPACES, icm.Args(model_updates=800, model_lr=1e-3, state_scale=5.0))
    state, action, next_state = transitions(400)
    losses = model.fit(state, action, next_state)
    # At the walls two actions lead to the same state, and at NOISY any action may: the rest can be told.
    assert losses["inverse_loss"] < 0.35
    model.args.beta = 0.0  # with the inverse loss alone, the forward model is not trained and the encoder still is
    before = [p.detach().clone() for net in (model.encoder, model.forward_model) for p in net.parameters()]
    model.optimizer = torch.optim.SGD(
        [p for net in (model.encoder, model.forward_model) for p in net.parameters()], lr=0.1
    )
    model.fit(state, action, next_state)
    after = [p for net in (model.encoder, model.forward_model) for p in net.parameters()]
    changed = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert changed == [True] * 4 + [False] * 4


def test_bonus_is_half_the_squared_error():
    torch.manual_seed(0)
    model = icm.ICM(*SPACES, icm.Args())
    state, action, next_state = transitions(7)
    predicted = model.forward_model(torch.cat([model.phi(state), F.one_hot(action, 3)], -1))
    expected = 0.5 * (predicted - model.phi(next_state)).norm(dim=-1).square()
    torch.testing.assert_close(model.bonus(state, action, next_state), expected.detach())


# ------------------------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("script", [icm, vime], ids=["icm", "vime"])
def test_same_seed_same_result(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    method = script.__name__.split("_")[1]
    results = []
    for name in ("first", "second"):
        returned = script.main(script.Args(length=10, total_timesteps=70, seed=1003, noise=0.1, run_name=name))
        results.append(json.loads((tmp_path / "runs" / name / "result.json").read_text()))
        assert returned == results[-1]
        assert list((tmp_path / "runs" / name).glob("events.*"))
    for result in results:
        assert result.pop("wall_time_s") > 0 and result.pop("sps") > 0
    assert results[0] == results[1]
    result = results[0]
    assert (result["method"], result["bonus"], result["dynamics"]) == (method, method, None)
    assert result["script"] == script.__name__ and result["steps"] == result["total_timesteps"] == 70
    assert 2 / 10 <= result["coverage"] <= 1 and math.isfinite(result["episodic_return"])
    assert result["solved"] == (result["solved_step"] is not None)
    assert "coverage" in capsys.readouterr().out


@pytest.mark.parametrize("script", [icm, vime], ids=["icm", "vime"])
def test_bad_input_is_refused_in_one_line(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for flags, message in (
        ({"length": 1}, "--length is 1"),
        ({"noise": 1.5}, "--noise is 1.5"),
        ({"rollout_steps": 9, "minibatches": 2}, "--rollout-steps is 9"),
        ({"model_updates": 0}, "--model-updates is 0"),
    ):
        with pytest.raises(SystemExit) as stop:
            script.main(script.Args(**flags))
        error = capsys.readouterr().err
        assert stop.value.code == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("script", [icm, vime], ids=["icm", "vime"])
def test_command_line(script, tmp_path):
    flags = [
        "--length",
        "5",
        "--total-timesteps",
        "40",
        "--run-name",
        "cli",
        "--seed",
        "1003",
        "--eta",
        "0.5",
        "--no-extrinsic",
    ]
    command = [sys.executable, script.__file__, *flags, "--save-model"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert json.loads((tmp_path / "runs" / "cli" / "result.json").read_text())["steps"] == 40
    assert (tmp_path / "runs" / "cli" / "model.pt").exists()
