"""Language models of a few hundred kilobytes, made on the spot: random weights, a tokenizer that knows every byte."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BloomConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from lzero_async.priorzero import Context
from lzero_async.priorzero.prompt import continuation, write_prompt

EOS, BOS = '<|end|>', '<|start|>'
WINDOW = 256
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
_MERGES = [('A', 'c'), ('t', 'i'), ('o', 'n'), ('Ac', 'ti'), ('Acti', 'on'), ('t', 'h'), ('th', 'e'), ('Ġ', 'the')]


def make_tokenizer(eos: bool = True, pad: bool = False, bos: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with a handful of merges."""
    vocabulary = {token: index for index, token in enumerate(_BYTES + [left + right for left, right in _MERGES])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=_MERGES))
    inner.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r' ?[A-Za-z]+|\n|[^A-Za-z\n]'), 'isolated'),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([EOS, BOS])
    if bos:
        start = inner.token_to_id(BOS)
        inner.post_processor = processors.TemplateProcessing(single=f'{BOS} $A', special_tokens=[(BOS, start)])
    names = {'eos_token': EOS if eos else None, 'bos_token': BOS if bos else None, 'pad_token': EOS if pad else None}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **{key: name for key, name in names.items() if name})


def make_model(family: str, window: int = WINDOW, vocabulary: int = 272) -> Any:
    """Random weights, the same ones at every call, and large enough that a wrong mask shows."""
    wide: dict[str, Any] = dict(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=window, initializer_range=0.3, bos_token_id=None, eos_token_id=None
    )
    config = {
        'gpt2': lambda: GPT2Config(
            vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=4, n_positions=window, initializer_range=0.3,
            bos_token_id=None, eos_token_id=None
        ),
        'llama': lambda: LlamaConfig(num_key_value_heads=2, tie_word_embeddings=True, **wide),
        'qwen2': lambda: Qwen2Config(num_key_value_heads=2, **wide),
        'sliding': lambda: Qwen2Config(
            num_key_value_heads=2, use_sliding_window=True, sliding_window=16, max_window_layers=0, **wide
        ),
        'bloom': lambda: BloomConfig(vocab_size=vocabulary, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3),
    }[family]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return AutoModelForCausalLM.from_config(config).eval()


def save(path: Path, family: str = 'llama', window: int = WINDOW, **tokenizer: bool) -> str:
    """A model's directory, as ``save_pretrained`` writes it."""
    make_model(family, window).save_pretrained(path)
    make_tokenizer(**tokenizer).save_pretrained(path)
    return str(path)


@torch.no_grad()
def naive_scores(
    path: str, contexts: Sequence[Context], actions: Sequence[Sequence[str]], eos: str = EOS
) -> list[list[float]]:
    """What a prior must say, in the plainest way: one whole sequence per action, no padding, no sharing."""
    model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    end = tokenizer.get_vocab()[eos]
    result = []
    for context, choices in zip(contexts, actions, strict=True):
        prompt = tokenizer(write_prompt(context))['input_ids']
        scores = []
        for action in choices:
            tail = tokenizer(continuation(action), add_special_tokens=False)['input_ids'] + [end]
            logits = model(torch.tensor([prompt + tail])).logits[0].log_softmax(-1)
            scores.append(sum(float(logits[len(prompt) + i - 1, token]) for i, token in enumerate(tail)) / len(tail))
        result.append(scores)
    return result
