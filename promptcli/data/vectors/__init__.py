"""Files of sentence vectors: written window by window, read and checked against their manifests."""
