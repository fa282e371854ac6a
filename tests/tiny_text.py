"""A text game small enough for a test: the shipped one, with a random BERT of a few thousand parameters."""
from __future__ import annotations

import copy
import string
from pathlib import Path
from typing import Any

import torch
from easydict import EasyDict
from transformers import BertConfig, BertModel, BertTokenizerFast

from lzero_async.text.games import CELLAR
from zoo_configs import jericho_unizero_segment_async_config as zoo

SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']


def tiny_encoder(directory: Path, seed: int = 0) -> str:
    """Write a random BERT and its tokenizer, which knows letters and the game's own words; the directory."""
    source = CELLAR.with_suffix('.inf').read_text(encoding='utf-8').lower()
    words = sorted({word for word in source.replace('"', ' ').replace("'", ' ').split() if word.isalpha()})
    pieces = list(string.ascii_lowercase + string.digits + string.punctuation)
    vocabulary = list(dict.fromkeys([*SPECIAL, *pieces, *(f'##{letter}' for letter in string.ascii_lowercase), *words]))
    numbers = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = BertTokenizerFast(vocab=numbers)
    if tokenizer.convert_tokens_to_ids('[SEP]') != numbers['[SEP]']:  # transformers 4 reads it from a file only
        path = directory.parent / f'{directory.name}.txt'
        path.write_text('\n'.join(vocabulary), encoding='utf-8')
        tokenizer = BertTokenizerFast(vocab_file=str(path))
    tokenizer.save_pretrained(directory)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        BertModel(BertConfig(
            vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=64
        )).save_pretrained(directory)
    return str(directory)


def tiny_text(encoder: str, env: dict[str, Any] | None = None, **policy: Any) -> list[EasyDict]:
    """``[main_config, create_config]`` from the drop-in config; ``env`` and ``policy`` override its keys."""
    main, create = copy.deepcopy(zoo.main_config), copy.deepcopy(zoo.create_config)
    main.exp_name = 'run'
    main.env.update(
        collector_env_num=2, evaluator_env_num=1, n_evaluator_episode=1, stop_value=10**6, max_steps=12, max_seq_len=64,
        tokenizer_path=encoder, **(env or {})
    )
    main.policy.update(
        collector_env_num=2, evaluator_env_num=1, num_segments=2, num_simulations=4, batch_size=8, replay_ratio=0.25,
        game_segment_length=5, num_unroll_steps=4, td_steps=2, eval_freq=20, replay_buffer_size=1000
    )
    main.policy.model.update(encoder_url=encoder)
    main.policy.model.world_model_cfg.update(
        env_num=2, collector_env_num=2, evaluator_env_num=1, embed_dim=16, num_layers=1, num_heads=2, max_blocks=4,
        max_tokens=8, context_length=4
    )
    for key, value in policy.items():
        if isinstance(value, dict) and key in main.policy:
            main.policy[key].update(value)
        else:
            main.policy[key] = value
    return [main, create]
