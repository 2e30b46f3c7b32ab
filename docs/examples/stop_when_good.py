"""A callback: keeps the policy at every new best return, and ends the run when it has not improved for a while."""

from pathlib import Path


class StopWhenGood:
    """Called with a `runnel.Progress` after updates; returning False ends the run."""

    def __init__(self, directory, patience_steps):
        self.directory, self.patience_steps = Path(directory), patience_steps
        self.best, self.best_at = float("-inf"), 0

    def __call__(self, progress):
        if progress.mean_return is None:  # no episode has ended yet
            return True
        if progress.mean_return > self.best:
            self.best, self.best_at = progress.mean_return, progress.env_steps
            progress.policy().save(self.directory / f"{progress.env_steps}")
        return progress.env_steps - self.best_at < self.patience_steps
