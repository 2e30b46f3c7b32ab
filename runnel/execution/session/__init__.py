"""One stretch of a run, from its start or resumption to its end."""
