"""Names of an encoder's tensors that other packages also use."""

TUNED = "backbone."  #: prefix of a tuned backbone's tensors
DEEP_PREFIX = "deep-prefix.keys_values"  #: the only tensor of a deep prefix
