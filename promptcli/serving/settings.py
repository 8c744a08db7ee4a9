"""Settings of a server: where it listens, and its limits. Light: the command line reads it for its help."""

from dataclasses import dataclass

from promptcli.settings import check_bounds, setting

#: Addresses that only this machine reaches.
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LIMITS = "Limits"


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a server; every field's ``help`` is that of the option of the same name."""

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 lets other machines reach it.")
    port: int = setting(8000, "Port to listen on; 0 takes a free one.", min=0, max=65535)
    gather_ms: float = setting(
        2.0, "Milliseconds an idle server waits for more requests to encode together.", min=0, max=60_000
    )
    max_waiting: int = setting(8192, "Texts waiting to be encoded; beyond, the answer is 429.", min=1, panel=_LIMITS)
    max_requests: int = setting(512, "Requests in progress; beyond, the answer is 429.", min=1, panel=_LIMITS)
    max_texts: int = setting(2048, "Texts of a request (OpenAI's limit).", min=1, panel=_LIMITS)
    max_characters: int = setting(100_000, "Characters of a text.", min=1, panel=_LIMITS)
    max_body_mib: int = setting(8, "Mebibytes of a request's body.", min=1, panel=_LIMITS)

    def __post_init__(self) -> None:
        check_bounds(self)
