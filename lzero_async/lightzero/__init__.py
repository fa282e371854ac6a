"""LightZero's own classes put behind this package's protocols. What differs between algorithms is in ``recipes``."""
