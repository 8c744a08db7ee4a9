"""The papers' tables and figures, measured again beside the published numbers."""
