"""One loop per role. The loops are the same wherever the work happens."""
