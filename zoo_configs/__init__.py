"""Drop-in configs: each runs as a file, imports as a module, and names the entry that it is made for."""
