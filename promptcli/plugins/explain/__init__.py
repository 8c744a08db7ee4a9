"""Why a hit is there: what each word adds to its score."""
