"""Looking inside models."""
