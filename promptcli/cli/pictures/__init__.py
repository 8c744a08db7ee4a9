"""Pictures and maps that commands draw."""
