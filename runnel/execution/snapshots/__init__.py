"""Snapshots of a run's policies: they are stored, and evaluated while training continues."""
