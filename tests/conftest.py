import pytest
import torch

torch.set_num_threads(1)  # as the scripts run; two threads on small matrices wait for each other


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """An empty working directory, for scripts that write to runs/."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def combinations(solver: str) -> list[tuple[str, str, str]]:
    """Every method with every bonus and dynamics model that it can use."""
    return [(method, "eig", "de") for method in ("random", solver)] + [
        (method, bonus, dynamics)
        for method in ("pts", "be", "pts-be")
        for bonus in ("eig", "entropy", "variance", "error")
        for dynamics in ("de", "gp", "dk")
        if (method, bonus) != ("pts-be", "error") and (method != "pts" or bonus == "eig")
    ]
