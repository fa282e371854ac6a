"""
Text games: UniZero on Jericho.

Nothing here is imported by ``import lzero_async``; ``jericho`` and ``transformers`` come with ``lzero-async[text]``.
"""
