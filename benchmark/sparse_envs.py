"""Tasks that pay only where they are solved, for `ptsbe_sac_continuous_action.py --env-id benchmark.sparse_envs:NAME`.

SparsePendulum-v0: Pendulum-v1 with reward 1 while it is upright and slow, 0 elsewhere.
SparseReacher-v0: Reacher-v5 with reward 1 while the fingertip is within 2 cm of the target, 0 elsewhere.
"""

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.envs.mujoco.reacher_v5 import ReacherEnv


class SparsePendulum(PendulumEnv):
    """Starts hanging down, at rest but for a little noise: the stock pendulum now and then starts upright."""

    def reset(self, **options):
        super().reset(**options)
        self.state = np.array([np.pi, 0.0]) + self.np_random.uniform(-0.05, 0.05, 2)
        return self._get_obs(), {}

    def step(self, action: np.ndarray):
        seen, _, terminated, truncated, info = super().step(action)
        upright_and_slow = seen[0] > np.cos(0.3) and abs(seen[2]) < 1
        return seen, float(upright_and_slow), terminated, truncated, info


class SparseReacher(ReacherEnv):
    def step(self, action: np.ndarray):
        seen, _, terminated, truncated, info = super().step(action)
        distance = np.linalg.norm(self.get_body_com("fingertip") - self.get_body_com("target"))
        return seen, float(distance < 0.02), terminated, truncated, info


gym.register("SparsePendulum-v0", SparsePendulum, max_episode_steps=200)
gym.register("SparseReacher-v0", SparseReacher, max_episode_steps=50)
