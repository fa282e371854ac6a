"""
A stand-in for the spaCy model that Jericho wants for its search of valid actions.

Jericho asks it which words of a description may name an object, and then examines each of them in the game itself. So
a word too many costs a little time and a word too few an action: all words count as nouns but those that never name
anything.
"""
from __future__ import annotations

import importlib
import re
from dataclasses import dataclass

_WORD = re.compile(r"[A-Za-z](?:[A-Za-z'-]*[A-Za-z])?")
_NAMELESS = frozenset(
    'a an the this that these those some any no every each all both another other such '
    'and or but nor so if then than because while until although '
    'of to in on at by for with from into onto off out over under above below between through across along around '
    'behind beside near toward towards up down about against before after during without '
    'i you he she it we they me him her us them my your his its our their who whom whose which what '
    'where when why how here there now never always again very too also just only quite rather almost even still '
    'is are was were be been being am do does did have has had can could will would shall should may might must not '
    'see sees go goes come comes get gets lead leads seem seems look looks lie lies stand stands sit sits hang hangs '
    'carrying nothing'.split()
)


@dataclass(frozen=True)
class Word:
    """As much of a spaCy token as Jericho reads."""
    text: str
    lower_: str
    pos_: str


def tokens(text: str) -> list[Word]:
    """The words of a text; those that may name an object are nouns."""
    return [
        Word(word, word.lower(), 'X' if word.lower() in _NAMELESS else 'NOUN') for word in _WORD.findall(text)
    ]


def install() -> None:
    """Let Jericho use ``tokens``, unless it has a language model already."""
    # By its name: once something has imported ctypes.util, as torch does, the attribute jericho.util is that module.
    util = importlib.import_module('jericho.util')
    if not hasattr(util, 'spacy_nlp'):
        setattr(util, 'spacy_nlp', tokens)  # noqa: B010 (a name that the module declares nowhere)
