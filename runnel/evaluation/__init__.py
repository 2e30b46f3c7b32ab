"""Playing what was trained."""
