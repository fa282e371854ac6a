"""
Serial against asynchronous, side by side: ``lzero-async bench``.

``command`` reads the command line, ``speed`` decides what is run when, ``measure`` runs one measurement in a process of
its own, which is ``child``. ``counting``, ``compare`` and ``table`` are arithmetic.
"""
