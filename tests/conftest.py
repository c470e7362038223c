import torch

torch.set_num_threads(1)  # as the scripts run; two threads on small matrices wait for each other
