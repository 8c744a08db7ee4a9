"""Pre-train a small BERT on plain text, or adapt an earlier model to it."""
