"""The settings of a server: its address and limits. This module is light, since help reads it."""

import ipaddress
import socket
from dataclasses import dataclass

from promptcli.settings import check_bounds, setting

#: Host names of a server that only this machine can reach.
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LIMITS = "Limits"


@dataclass(frozen=True)
class ServeSettings:
    """The settings of a server; the help of a field is also the help of its option."""

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 lets other machines reach it.")
    port: int = setting(8000, "Port to listen on; 0 takes a free one.", min=0, max=65535)
    max_waiting: int = setting(
        8192,
        "Most texts waiting to be encoded; beyond it, the answer is 429.",
        min=1,
        panel=_LIMITS,
    )
    max_requests: int = setting(
        512, "Most requests in progress; beyond it, the answer is 429.", min=1, panel=_LIMITS
    )
    max_texts: int = setting(
        2048, "Most texts in a request (OpenAI's limit).", min=1, panel=_LIMITS
    )
    max_characters: int = setting(100_000, "Most characters in a text.", min=1, panel=_LIMITS)
    max_body_mib: int = setting(8, "Largest body of a request, in mebibytes.", min=1, panel=_LIMITS)
    max_answer_mib: int = setting(64, "Largest answer, in mebibytes.", min=1, panel=_LIMITS)
    max_connections: int = setting(
        1024,
        "Most open connections; fewer if the limit of descriptors is low (`ulimit -n`).",
        min=4,
        panel=_LIMITS,
    )

    def __post_init__(self) -> None:
        check_bounds(self)

    def loopback_names(self) -> tuple[str, ...]:
        """Return the host's names and addresses if only this machine can reach it, else none."""
        host = self.host.lower()
        if host in LOOPBACK:
            return LOOPBACK
        try:  # 127.1 and 0x7f000001 are addresses, too
            resolved = socket.getaddrinfo(
                host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except (OSError, ValueError):  # ValueError: not a host name
            return ()
        names = [*LOOPBACK, host]
        for *_, socket_address in resolved:
            address = ipaddress.ip_address(str(socket_address[0]).partition("%")[0])
            if not (getattr(address, "ipv4_mapped", None) or address).is_loopback:
                return ()
            names.append(str(address))
        return tuple(dict.fromkeys(names))
