"""promptcli: sentence encoders from pre-trained language models, by prompts."""

__version__ = "0.1.0"
