"""Named encoders: entries on disk, aliases, and what a choice of the user means."""
