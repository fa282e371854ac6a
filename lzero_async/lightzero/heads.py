"""
A UniZero world model that computes only the heads that are read.

Upstream's forward evaluates all four heads for every token (world_model.py:594-597). In a search the token of an action
is asked for the reward and the next latent state, the token of an observation for policy and value; a third of what
``root`` inference computes is read by nobody. What is left out here is never read, so no number changes.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

HEADS = ('head_observations', 'head_rewards', 'head_policy', 'head_value')
_DYNAMICS = frozenset(('head_observations', 'head_rewards'))
_PREDICTION = frozenset(('head_policy', 'head_value'))
_NONE: frozenset[str] = frozenset()
_ALL = frozenset(HEADS)


def wanted(inputs: Any, is_init_infer: bool) -> frozenset[str]:
    """The heads whose output upstream reads after a forward of an inference, by what is fed in."""
    if 'act_tokens' in inputs:
        # The root's forward of an action only fills the cache: the one of the observation that follows is read.
        return _NONE if is_init_infer else _DYNAMICS
    if 'obs_embeddings' in inputs or 'obs_embeddings_and_act_tokens' in inputs:
        return _PREDICTION
    return _ALL


def read_heads_only(world_model: Any) -> Callable[[], None]:
    """
    Overview:
        Make a world model skip heads that are not read. For models that only infer, a worker's or the target: a loss
        reads all heads. The modules stay where they are, so names of weights do not change.
    Arguments:
        - world_model (:obj:`WorldModel`): upstream's; one that looks otherwise than 0.2.0's is left as it is.
    Returns:
        - undo (:obj:`Callable[[], None]`): makes it what it was. Until then it can be neither copied nor pickled.
    """
    if getattr(world_model, 'num_observations_tokens', None) != 1 or not all(hasattr(world_model, h) for h in HEADS):
        return lambda: None
    asked: list[frozenset[str]] = [_ALL]  # of the forward under way; a model has one owner
    forward = world_model.forward

    def only_if_asked(name: str, head: Callable[..., Any]) -> Callable[..., Any]:

        def compute(*args: Any, **kwargs: Any) -> Any:
            return head(*args, **kwargs) if name in asked[0] else None

        return compute

    def infer(inputs: Any, past_keys_values: Any = None, kvcache_independent: bool = False, is_init_infer: bool = True,
              *args: Any, **kwargs: Any) -> Any:
        asked[0] = wanted(inputs, is_init_infer)
        return forward(inputs, past_keys_values, kvcache_independent, is_init_infer, *args, **kwargs)

    changed = [world_model, *(getattr(world_model, name) for name in HEADS)]
    for name, head in zip(HEADS, changed[1:], strict=True):
        head.forward = only_if_asked(name, head.forward)
    world_model.forward = infer

    def undo() -> None:
        for module in changed:
            del module.forward  # the class's own is there again

    return undo
