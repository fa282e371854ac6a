"""Story files: the one that is shipped, and the user's own."""
from __future__ import annotations

import filecmp
import hashlib
import importlib
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Suggestion:
    """What suits a game where the config leaves it open."""
    max_action_num: int
    max_steps: int
    stop_value: float = 1e6  # a run of its own accord ends at the shipped game's best score only


# Those of known games are of upstream's zoo/jericho/configs; so are those of all others.
_SUGGESTIONS = {
    'tw-cellar': Suggestion(10, 25, MAX_SCORE),
    'detective': Suggestion(12, 100),
    'omniquest': Suggestion(25, 100),
    'acorncourt': Suggestion(45, 50),
    'zork1': Suggestion(55, 500),
}
_OTHERS = Suggestion(10, 50)


def suggestion(story: str) -> Suggestion:
    """By the name of a story file, without its suffix."""
    return _SUGGESTIONS.get(Path(story).stem, _OTHERS)


def story_file(game_path: str | None) -> str:
    """The file that ``env.game_path`` means; None and 'cellar' mean the shipped game."""
    if game_path in (None, 'cellar'):
        return str(CELLAR)
    path = Path(str(game_path)).expanduser()
    if not path.is_file():
        raise ConfigError(
            f'env.game_path is {game_path!r}: there is no such story file; give the path of one (.z3, .z5, .z8), or '
            'leave it out for the shipped game'
        )
    # A copy under another name would not count as a TextWorld game, and the settings that suit it go by its name too.
    return str(CELLAR) if filecmp.cmp(path, CELLAR, shallow=False) else str(path)


def register_cellar() -> None:
    """Let Jericho know the shipped game."""
    digest = hashlib.md5(CELLAR.read_bytes(), usedforsecurity=False).hexdigest()
    importlib.import_module('jericho.defines').BINDINGS_DICT[digest] = _BINDINGS
