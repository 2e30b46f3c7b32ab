"""One small training script per library, for the fault scenarios; each runs in an interpreter that has its library."""
