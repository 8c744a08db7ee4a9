"""What commands draw: maps in the terminal, plots in files."""
