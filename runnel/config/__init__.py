"""Settings as text, JSON and dataclasses; how JAX is configured."""
