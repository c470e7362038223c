import pytest
import torch

torch.set_num_threads(1)  # as the scripts run; two threads on small matrices wait for each other


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """An empty working directory, for scripts that write to runs/."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
