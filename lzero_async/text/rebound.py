"""
Upstream's functions with other names in their sight.

Some of upstream's methods do all but one thing right, and that one thing is a name of their module: a class that they
make objects of, ``print``. A copy would age with every release; a change of the module would be seen by every thread.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any


def rebound(function: Any, **names: Any) -> Callable[..., Any]:
    """``function``'s own code, which sees ``names`` instead of its module's; the module stays as it is."""
    copy = FunctionType(
        function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__,
        function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return functools.wraps(function)(copy)
