"""Named encoders: entries on disk, and what a choice of the user means."""
