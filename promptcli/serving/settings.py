"""Settings of a server: where it listens, what it takes at most. Light: the command line reads it for its help."""

from dataclasses import dataclass, field

from promptcli.settings import check_bounds

_LIMITS = "Limits"


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a server; every field's ``help`` is that of the option of the same name."""

    host: str = field(
        default="127.0.0.1", metadata={"help": "Address to listen on; 0.0.0.0 lets other machines reach it."}
    )
    port: int = field(default=8000, metadata={"help": "Port to listen on; 0 takes a free one.", "min": 0, "max": 65535})
    gather_ms: float = field(
        default=2.0,
        metadata={
            "help": "Milliseconds an idle server waits for more requests to encode together.",
            "min": 0,
            "max": 60_000,
        },
    )
    max_waiting: int = field(
        default=8192,
        metadata={"help": "Texts waiting to be encoded; beyond, the answer is 429.", "min": 1, "panel": _LIMITS},
    )
    max_requests: int = field(
        default=512,
        metadata={"help": "Requests in work; beyond, the answer is 429.", "min": 1, "panel": _LIMITS},
    )
    max_texts: int = field(
        default=2048, metadata={"help": "Texts of a request (OpenAI's limit).", "min": 1, "panel": _LIMITS}
    )
    max_characters: int = field(default=100_000, metadata={"help": "Characters of a text.", "min": 1, "panel": _LIMITS})
    max_body_mib: int = field(
        default=8, metadata={"help": "Mebibytes of a request's body.", "min": 1, "panel": _LIMITS}
    )

    def __post_init__(self) -> None:
        check_bounds(self)
