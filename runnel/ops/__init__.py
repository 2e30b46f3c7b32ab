"""Returns, minibatches, normalisation, randomness and other pure functions that no library provides in this form."""
