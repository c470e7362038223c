"""What the three pictures claim, measured; and the whole script once."""

import csv

import pytest
import torch
from regression_1d import (
    MODELS,
    Args,
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
