"""Names of an encoder's tensors that other packages know, too."""

TUNED = "backbone."  #: prefix of a tuned backbone's
DEEP_PREFIX = "deep-prefix.keys_values"  #: of a deep prefix, its only one
