"""Vector parts and data-set columns computed by a Ray cluster."""
