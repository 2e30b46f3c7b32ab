"""What a run does with the snapshots of its policies: it stores them, and evaluates them while training continues."""
