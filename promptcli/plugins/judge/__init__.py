"""Which model and way of ranking answers one's own questions better, by one's own judgements."""
