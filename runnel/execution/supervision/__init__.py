"""A run's processes: workers are started, watched, paused for checkpoints, and replaced."""
