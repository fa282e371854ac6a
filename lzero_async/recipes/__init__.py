"""What differs between algorithms, and nothing else. Only these modules know an algorithm's name."""
from __future__ import annotations

from ..core import ConfigError
from .base import Recipe
from .muzero import MUZERO
from .unizero import UNIZERO

__all__ = ['MUZERO', 'UNIZERO', 'Recipe', 'recipe_named']

_RECIPES = {recipe.name: recipe for recipe in (UNIZERO, MUZERO)}


def recipe_named(name: str) -> Recipe:
    """A recipe by the name that travels to workers."""
    if name not in _RECIPES:
        raise ConfigError(f'no recipe named {name!r}; there are {", ".join(_RECIPES)}')
    return _RECIPES[name]
