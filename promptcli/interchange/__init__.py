"""In and out: what other programs read of an encoder, and what is read of theirs."""
