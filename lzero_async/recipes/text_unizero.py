"""UniZero on text games: ``train_unizero_segment_async`` takes it wherever ``world_model_cfg.obs_type`` is 'text'."""
from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from ..core import ConfigError
from ..text.collector import Observations, Phase, TextCollector, TextEvaluator, Watched
from ..text.encoder import restore_encoder
from ..text.extras import encoder_path, need
from ..text.games import story_file, suggestion
from ..text.search import TextGameBuffer
from .unizero import UniZeroRecipe

logger = logging.getLogger(__name__)


class TextUniZeroRecipe(UniZeroRecipe):
    """
    Overview:
        A frozen pretrained encoder, and as many actions as a state happens to have. A subclass that has more to do
        around searches and steps overrides the last three methods; what one worker has to remember belongs on its
        policy, put there by ``ready``, as one recipe serves all workers of a process.
    """

    name = 'text_unizero'
    buffers = {'unizero': TextGameBuffer}

    @staticmethod
    def serial_entry(input_cfg: list[Any], *args: Any) -> Any:
        """Upstream's entry, with all that it gets wrong on text games."""
        main_config, create_config = copy.deepcopy(input_cfg)
        _complete(main_config)
        return UniZeroRecipe.serial_entry([main_config, create_config], *args)

    def settle(self, main_config: Any) -> None:
        _complete(main_config)
        if main_config.policy.get('action_type', 'fixed_action_space') != 'fixed_action_space':
            logger.info(
                'policy.action_type is %r: searches store a number for every action here, so it becomes '
                "'fixed_action_space'", main_config.policy.action_type
            )
        main_config.policy.action_type = 'fixed_action_space'

    def ready(self, policy: Any) -> None:
        restore_encoder(policy, policy._cfg.model.encoder_url)

    def make_collector(self, whole_policy: Any, /, **arguments: Any) -> TextCollector:
        return TextCollector(Watched(self, whole_policy, 'collect'), **arguments)

    def left_out(self, collector: TextCollector) -> dict[str, int]:
        dropped, collector.actions_dropped = collector.actions_dropped, 0
        return {'actions_dropped': dropped}

    def make_evaluator(self, whole_policy: Any, /, **arguments: Any) -> TextEvaluator:
        return TextEvaluator(Watched(self, whole_policy, 'eval'), **arguments)

    def before_search(self, policy: Any, ready_obs: Observations, phase: Phase) -> None:
        """Called before each search with the observations it will search from, in the order of its rows."""

    def after_search(self, policy: Any, ready_obs: Observations, output: dict[int, Any], phase: Phase) -> None:
        """Called after each search with its output by environment; a collect's visits have a place for every action."""

    def after_step(self, policy: Any, actions: Mapping[int, Any], timesteps: Mapping[int, Any], phase: Phase) -> None:
        """Called after each step of the environments; an observation whose episode is done is its last one."""


def _complete(main_config: Any) -> None:
    """Fill in what the config leaves open (None): where the encoder is, and what suits the game."""
    need('transformers')
    env, model = main_config.env, main_config.policy.model
    model.encoder_url = encoder_path(model.get('encoder_url'), 'policy.model.encoder_url')
    if env.get('tokenizer_path') is None:
        env.tokenizer_path = model.encoder_url
    for key, value in dataclasses.asdict(suggestion(story_file(env.get('game_path')))).items():
        if env.get(key) is None:
            env[key] = value
    if model.get('frame_stack_num', 1) != 1:
        raise ConfigError(
            f'policy.model.frame_stack_num is {model.frame_stack_num}: texts are not stacked; set it to 1'
        )
    _agree(model, 'model.action_space_size', 'action_space_size', env, 'max_action_num')
    _agree(model.world_model_cfg, 'model.world_model_cfg.action_space_size', 'action_space_size', env, 'max_action_num')
    _agree(model, 'model.observation_shape', 'observation_shape', env, 'max_seq_len')


def _agree(section: Any, path: str, key: str, env: Any, env_key: str) -> None:
    """One number that two sections have: taken over where it is open, refused where they differ."""
    if section.get(key) is None:
        section[key] = env[env_key]
    elif section[key] != env[env_key]:
        raise ConfigError(
            f'policy.{path} is {section[key]} but env.{env_key} is {env[env_key]}: make them equal, or leave out the '
            'former'
        )


TEXT_UNIZERO = TextUniZeroRecipe()
