"""What a run keeps: checkpoints, metrics, events, and the run directory they are in."""
