"""What the language model reads. Short, as every token is paid for at every search."""
from __future__ import annotations

from dataclasses import dataclass

TASK = 'Play a text game. Answer with the best next action.'


@dataclass(frozen=True)
class Context:
    """What the model is told about a state."""
    observation: str  # the text to act on
    history: tuple[tuple[str, str, float], ...] = ()  # text, action and reward of recent turns, oldest first


def write_prompt(context: Context) -> str:
    """The text after which ``continuation(action)`` follows; rewards of zero go unsaid."""
    lines = [TASK]
    for text, action, reward in context.history:
        lines += [text.strip(), continuation(action)]
        if reward:
            lines.append(f'Reward: {reward:g}')
    lines.append(context.observation.strip())
    return '\n'.join(lines) + '\n'


def continuation(action: str) -> str:
    """The text that is scored, with the model's end token after it."""
    return f'Action: {action}'
