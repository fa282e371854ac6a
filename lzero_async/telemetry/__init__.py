"""What a run tells about itself. The run directory is the interface: whoever watches only reads it."""
