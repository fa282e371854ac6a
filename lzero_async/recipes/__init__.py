"""What differs between algorithms, and nothing else. Only these modules know an algorithm's name."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core import ConfigError
from .base import Recipe
from .muzero import MUZERO
from .priorzero import PRIORZERO
from .text_unizero import TEXT_UNIZERO
from .unizero import UNIZERO

__all__ = ['MUZERO', 'PRIORZERO', 'TEXT_UNIZERO', 'UNIZERO', 'Recipe', 'recipe_for', 'recipe_named']

_RECIPES = {recipe.name: recipe for recipe in (UNIZERO, TEXT_UNIZERO, PRIORZERO, MUZERO)}


def recipe_named(name: str) -> Recipe:
    """A recipe by the name that travels to workers."""
    if name not in _RECIPES:
        raise ConfigError(f'no recipe named {name!r}; there are {", ".join(_RECIPES)}')
    return _RECIPES[name]


def recipe_for(recipe: Recipe, main_config: Mapping[str, Any]) -> Recipe:
    """An entry's recipe, or its variant for what this config observes."""
    world_model = main_config['policy'].get('model', {}).get('world_model_cfg', {})
    return TEXT_UNIZERO if recipe is UNIZERO and world_model.get('obs_type') == 'text' else recipe
