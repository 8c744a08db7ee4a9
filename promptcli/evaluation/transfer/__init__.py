"""Transfer tasks: a linear classifier on frozen vectors, SentEval's protocol."""
