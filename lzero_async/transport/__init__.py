"""How bytes travel between the driver and its workers."""
