"""
A run with the sources of chance pinned, as a process of its own: ``python pinned_run.py ENTRY POLICY_TYPE SETTINGS``.

Prints one line of JSON: a digest of the final weights and the counts that a checkpoint and the logs tell.
"""
from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from tiny import tiny


def digest(policy: Any) -> str:
    weights = hashlib.sha256()
    for name, tensor in sorted(policy._learn_model.state_dict().items()):
        weights.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return weights.hexdigest()


def counts(directory: Path) -> dict[str, int]:
    last = max(
        (path for path in (directory / 'ckpt').glob('iteration_*.pth.tar')),
        key=lambda path: int(re.findall(r'\d+', path.name)[0])
    )
    state = torch.load(last, map_location='cpu')
    evaluations = (directory / 'log' / 'evaluator' / 'evaluator_logger.txt').read_text().count('reward_mean')
    return {'updates': state['last_iter'], 'env_steps': state['last_step'], 'evaluations': evaluations}


def main() -> None:
    which, policy_type, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    torch.set_num_threads(1)
    if which == 'upstream':
        from lzero.entry import train_muzero_segment, train_unizero_segment
        train = train_unizero_segment if 'unizero' in policy_type else train_muzero_segment
    else:
        from lzero_async import train_muzero_segment_async, train_unizero_segment_async
        train = train_unizero_segment_async if 'unizero' in policy_type else train_muzero_segment_async
    max_env_step = settings.pop('max_env_step')
    policy = train(tiny(policy_type, seeded=True, **settings), seed=3, max_env_step=max_env_step)
    result = {'weights': digest(policy), **counts(Path('run'))}
    sys.stdout.write('\nRESULT ' + json.dumps(result) + '\n')


if __name__ == '__main__':
    main()
