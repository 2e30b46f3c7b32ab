"""The files of a run: checkpoints, metrics, events, and the run directory that they are in."""
