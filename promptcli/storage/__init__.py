"""Files and folders on disk: complete or absent, locked when written, checked when read."""
