"""Find the model and ranking that best answer your own questions, by your own judgements."""
