"""The encoder: recipe, prompts, pooling, transforms, and encoding."""
