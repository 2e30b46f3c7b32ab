"""What a run shows: the live view, the bottleneck, learning curves."""
