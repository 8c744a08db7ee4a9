"""Models by name and as folders: load, save, export, import, and the Hugging Face hub."""
