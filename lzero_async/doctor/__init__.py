"""
What this machine can do, and which settings suit a config on it: ``lzero-async doctor``.

``command`` reads the command line, ``machine`` looks around, ``gil`` and ``trial`` measure, ``advice`` applies the rule
of ``sizing`` to what was measured, ``render`` makes text of it.
"""
