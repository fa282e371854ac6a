"""One timed run in its own process: ``speed_run.py serial|process|thread ENV_STEPS``; prints one line of JSON."""
from __future__ import annotations

import copy
import json
import sys
import time
from typing import Any

from ding.worker import BaseLearner
from lzero.entry import train_unizero_segment

from lzero_async import train_unizero_segment_async
from zoo_configs.cartpole_unizero_segment_async_config import create_config, main_config

marks: list[tuple[float, int]] = []  # (when, env steps) after every update


def pinned(placement: str) -> list[Any]:
    """Four environments, 25 simulations, batch 256, replay ratio 0.25, degree 3; no evaluation."""
    main, create = copy.deepcopy(main_config), copy.deepcopy(create_config)
    main.exp_name = 'run'
    main.env.update(collector_env_num=4)
    main.policy.update(
        collector_env_num=4, num_segments=4, num_simulations=25, batch_size=256, replay_ratio=0.25,
        off_policy_degree=3, eval_freq=10**9
    )
    main.policy.model.world_model_cfg.update(env_num=4, collector_env_num=4)
    main.policy.async_pipeline.placement = placement
    return [main, create]


def main() -> None:
    which, env_steps = sys.argv[1], int(sys.argv[2])
    train_once = BaseLearner.train

    def train(self: Any, data: Any, envstep: int = -1, policy_kwargs: Any = None) -> Any:
        result = train_once(self, data, envstep, policy_kwargs)
        marks.append((time.monotonic(), envstep))
        return result

    BaseLearner.train = train
    entry = train_unizero_segment if which == 'serial' else train_unizero_segment_async
    entry(pinned('process' if which == 'serial' else which), seed=0, max_env_step=env_steps)
    (began, first), (ended, last) = marks[0], marks[-1]
    result = {
        'env_steps_per_s': (last - first) / (ended - began), 'updates_per_s': (len(marks) - 1) / (ended - began)
    }
    sys.stdout.write('\nRESULT ' + json.dumps(result) + '\n')


if __name__ == '__main__':
    main()
