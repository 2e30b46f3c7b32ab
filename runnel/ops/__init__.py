"""Returns, minibatches, normalisation and randomness that no library has."""
