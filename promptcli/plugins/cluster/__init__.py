"""Parts of vectors, and columns of data sets, made by a Ray cluster."""
