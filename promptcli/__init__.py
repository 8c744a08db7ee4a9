"""promptcli: sentence encoders from pre-trained language models, by prompts.

    >>> import promptcli as pc
    >>> encoder = pc.load("mini")
    >>> encoder.encode(["A cat sleeps.", "Two dogs play."]).shape
    (2, 256)

A name is loaded when it is first used, so that importing promptcli takes no time.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
