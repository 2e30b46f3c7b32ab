"""Interprets plans: the nodes of its fragment determine what a worker does."""
