"""The reactive comparators: VIME's information gain and ICM's curiosity against what they must be, and whole runs."""

import inspect
import json

import ppo_icm_unichain as icm
import ppo_vime_unichain as vime
import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence

import ptsbe_ppo_unichain as chain

DIMS = 1, 3  # variables of a state, actions


# ------------------------------------------------------------------------------------------------------------- VIME


def bayesian_network():
    torch.manual_seed(0)
    network = vime.BayesianNetwork(4, 2, vime.Args()).double()
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
        monkeypatch.setattr(network, "STEP_SIZE", step_size)
        exact = []
        for i in range(6):
            loss = network.nll(network.mu, network.rho, x[i], y[i], [part[i] for part in noise])
            grad_mu, grad_rho = torch.autograd.grad(loss, [network.mu, network.rho])
            new_mu, new_rho = mu - step_size * grad_mu / h_mu, rho - step_size * grad_rho / h_rho
            new, old = Normal(new_mu, F.softplus(new_rho)), Normal(mu, F.softplus(rho))
            exact.append(kl_divergence(new, old).sum())
        gain = network.information_gain(x, y)
        errors.append(((gain - torch.stack(exact)).abs() / torch.stack(exact)).max())
    assert errors[-1] < 1e-2
    assert errors[0] > 5 * errors[1] > 25 * errors[2]  # the next term is one order higher in lambda


def test_local_reparametrisation_has_the_moments_of_sampled_weights():
    network = bayesian_network()
    x, samples = torch.randn(1, 4, dtype=torch.float64), 200_000
    y = torch.zeros(1, 2, dtype=torch.float64)
    torch.manual_seed(1)
    noise = [torch.randn(1, samples, size, dtype=torch.float64) for size in (network.WIDTH, 2)]
    local = network.nll(network.mu, network.rho, x, y, noise).item()
    sd = F.softplus(network.rho)
    total, rounds = 0.0, 20_000
    with torch.no_grad():
        for _ in range(rounds):
            w1, b1, w2, b2 = network.layers(network.mu + sd * torch.randn(len(sd), dtype=torch.float64))
            predicted = torch.relu(x @ w1 + b1) @ w2 + b2
            total += 0.5 * (predicted / network.LIKELIHOOD_SD).square().sum().item()
    assert local == pytest.approx(total / rounds, rel=0.05)


def test_bayesian_network_learns_and_its_posterior_contracts():
    torch.manual_seed(0)
    x = torch.rand(200, 1) * 2 - 1
    network = vime.BayesianNetwork(1, 1, vime.Args(model_updates=1500, model_lr=1e-2))
    y = x.abs()
    before = network.information_gain(x, y).mean()
    network.fit(x, y)
    predicted = network.nll(network.mu, torch.full_like(network.rho, -20.0), x, y, network.draw(200)).detach()
    assert predicted.mean() * 2 * network.LIKELIHOOD_SD**2 < 0.02  # mean squared error of the mean weights
    assert network.information_gain(x, y).mean() < 0.1 * before
    far = network.information_gain(x + 3, y).mean()
    assert far > 10 * network.information_gain(x, y).mean()


def test_bonus_is_divided_by_the_mean_of_the_recent_medians(monkeypatch):
    torch.manual_seed(0)
    model = vime.VIME(*DIMS, vime.Args())
    new = transitions(41)  # an odd number, of which one is the median
    assert (model.bonus(*new) == 0).all()  # no network has been trained yet
    model.fit(*new)
    assert model.bonus(*new).median() == pytest.approx(1.0)  # the first batch, by its own median
    monkeypatch.setattr(model.network, "information_gain", lambda x, y: torch.full((len(x),), 3.0))
    first = model.medians[0]
    torch.testing.assert_close(model.bonus(*new), torch.full((41,), 6 / (3 + first)))
    for _ in range(2 * model.MEDIANS):
        model.bonus(*new)
    assert list(model.medians) == [3.0] * model.MEDIANS


# -------------------------------------------------------------------------------------------------------------- ICM


LENGTH, QUIET, NOISY = 20, 5, 14  # at QUIET, right leads to QUIET + 1; at NOISY, it leads anywhere


def scaled(states: torch.Tensor) -> torch.Tensor:
    """As the chain shows its states: (N,) -> (N, 1), from -1 to 1."""
    return 2 * states[:, None] / (LENGTH - 1) - 1


def transitions(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All three actions in all states, the pair (NOISY, right) with a random outcome."""
    generator = torch.Generator().manual_seed(seed)
    state = torch.randint(LENGTH, (count,), generator=generator)
    action = torch.randint(3, (count,), generator=generator)
    next_state = (state + action - 1).clamp(0, LENGTH - 1)
    anywhere = torch.randint(LENGTH, (count,), generator=generator)
    next_state = torch.where((state == NOISY) & (action == 2), anywhere, next_state)
    return scaled(state), action, scaled(next_state)


def probe(position: int, outcomes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return scaled(torch.full((len(outcomes),), position)), torch.full((len(outcomes),), 2), scaled(outcomes)


@pytest.fixture
def module(monkeypatch):
    """A curiosity module for a chain of LENGTH states, which are further apart than 50."""
    monkeypatch.setattr(icm.ICM, "STATE_SCALE", 5.0)
    torch.manual_seed(0)
    return icm.ICM(*DIMS, icm.Args(model_updates=800, model_lr=1e-3))


def test_curiosity_falls_on_a_repeated_transition_and_stays_up_on_a_noisy_one(module):
    quiet, noisy = probe(QUIET, torch.tensor([QUIET + 1])), probe(NOISY, torch.arange(LENGTH))
    before = module.bonus(*quiet).mean(), module.bonus(*noisy).mean()
    module.fit(*transitions(400))
    after = module.bonus(*quiet).mean(), module.bonus(*noisy).mean()
    assert after[0] < 0.02 * before[0]
    assert after[1] > 0.5 * before[1]


def test_eig_of_the_same_transitions_falls_on_both():
    def inputs(states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return torch.cat([states, F.one_hot(actions, 3)], -1)

    torch.manual_seed(0)
    model = chain.PriorEnsemble(4, 3, chain.Args())
    states, actions, afters = transitions(400)
    targets = torch.cat([afters - states, torch.zeros(400, 2)], -1)  # no reward, no end
    x = torch.cat([inputs(*probe(position, torch.zeros(1))[:2]) for position in (QUIET, NOISY)])  # (2, 4)
    model.fit(inputs(states, actions)[:2], targets[:2], 1)
    before = model.eig(*model.predict(x))
    model.fit(inputs(states, actions), targets, 800)
    after = model.eig(*model.predict(x))
    assert (after < 0.2 * before).all(), (before, after)


def test_inverse_model_reads_the_action_and_shapes_the_encoder(module):
    new = transitions(400)
    # At the walls two actions lead to the same state, and at NOISY any action may: the rest can be told.
    assert module.fit(*new)["inverse"] < 0.35
    module.args.beta = 0.0  # with the inverse loss alone, the forward model is not trained and the encoder still is
    networks = {name: nn for name, nn in module.named_children() if name in ("encoder", "forward_model")}
    before = {name: torch.cat([p.detach().flatten() for p in nn.parameters()]) for name, nn in networks.items()}
    module.optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module.fit(*new)
    after = {name: torch.cat([p.detach().flatten() for p in nn.parameters()]) for name, nn in networks.items()}
    assert not torch.equal(before["encoder"], after["encoder"])
    assert torch.equal(before["forward_model"], after["forward_model"])


def test_bonus_is_half_the_squared_error():
    torch.manual_seed(0)
    model = icm.ICM(*DIMS, icm.Args())
    state, action, next_state = transitions(7)
    predicted = model.forward_model(torch.cat([model.phi(state), F.one_hot(action, 3)], -1))
    expected = 0.5 * (predicted - model.phi(next_state)).norm(dim=-1).square()
    torch.testing.assert_close(model.bonus(state, action, next_state), expected.detach())


# ------------------------------------------------------------------------------------------------------------- runs


every_baseline = pytest.mark.parametrize("script", [icm, vime], ids=["icm", "vime"])


@every_baseline
def test_a_run_tells_its_method_and_has_neither_bonus_nor_model_of_the_scripts(in_tmp, script):
    result = script.main(script.Args(length=10, total_timesteps=70, seed=1003, noise=0.1, swap="half"))
    method = script.__name__.split("_")[1]
    assert (result["method"], result["bonus"], result["dynamics"]) == (method, None, None)
    assert result["env"] == "Unichain-10-swap-half-noise0.1" and "method" not in result["args"]
    (folder,) = (in_tmp / "runs").iterdir()
    assert folder.name.startswith(f"{result['env']}__{method}__1003__")
    assert json.loads((folder / "result.json").read_text()) == result


@every_baseline
def test_environment_and_measures_are_those_of_the_chain_script(script):
    """What is counted is the same text; pictures differ, because a baseline has no EIG to draw."""
    assert inspect.getsource(script.make_env) == inspect.getsource(chain.make_env)
    for name in ("__init__", "add", "metrics"):
        assert inspect.getsource(getattr(script.Visits, name)) == inspect.getsource(getattr(chain.Visits, name))


@every_baseline
def test_without_bonus_and_reward_the_policy_stays_uniform(in_tmp, script):
    """The bonus is all that leads: 0 times eta, and no reward, leave the advantages at 0."""
    for eta, uniform in ((0.0, True), (script.Args.eta, False)):
        name = f"eta-{eta}"
        script.main(script.Args(eta=eta, extrinsic=False, total_timesteps=72, run_name=name, save_model=True))
        saved = torch.load(f"runs/{name}/model.pt", weights_only=True)
        policy = script.PPO(*DIMS, script.Args(**saved["args"]))
        policy.load_state_dict(saved["policy"])
        with torch.no_grad():
            probabilities = policy(torch.linspace(-1, 1, 20)[:, None])[0].softmax(-1)
        assert ((probabilities - 1 / 3).abs() < 1e-3).all() == uniform
