"""Story files: the one that is shipped, and the user's own."""
from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

from ..core import ConfigError

CELLAR = Path(__file__).resolve().parent / 'games' / 'tw-cellar.z5'
MAX_SCORE = 10  # of the shipped game

# What Jericho has for each game that it knows. A story file named tw-* counts as a TextWorld game, whose score and end
# it can tell; the rest is here.
_BINDINGS = {
    'name': 'tw-cellar',
    'rom': CELLAR.name,
    'seed': 0,
    'max_word_length': 9,
    'walkthrough': 'north/take key/south/east/north/unlock chest with key/open chest/take gem',
    'grammar': 'wait/z;take/get OBJ;drop OBJ;open OBJ;close OBJ;eat OBJ;unlock OBJ with OBJ;',
}


def story_file(game_path: str | None) -> str:
    """The file that ``env.game_path`` means; None and 'cellar' mean the shipped game."""
    if game_path in (None, 'cellar'):
        _register_cellar()
        return str(CELLAR)
    path = Path(str(game_path)).expanduser()
    if not path.is_file():
        raise ConfigError(
            f'env.game_path is {game_path!r}: there is no such story file; give the path of one (.z3, .z5, .z8), or '
            'leave it out for the shipped game'
        )
    return str(path)


def _register_cellar() -> None:
    digest = hashlib.md5(CELLAR.read_bytes(), usedforsecurity=False).hexdigest()
    importlib.import_module('jericho.defines').BINDINGS_DICT[digest] = _BINDINGS
