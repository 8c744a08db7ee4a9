"""Looking inside: anisotropy, alignment and uniformity, token biases, impact matrices, attention."""
