"""Types of command line options."""
from __future__ import annotations

import argparse


def count(text: str) -> int:
    """A positive number; 4e3 is one too."""
    value = float(text)
    if not 1 <= value < float('inf') or value != int(value):
        raise argparse.ArgumentTypeError(f'{text!r} is not a positive whole number')
    return int(value)
