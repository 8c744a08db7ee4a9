"""The papers' training files, by name, from the hub or its cache on this machine."""

from collections.abc import Callable, Mapping
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from promptcli.errors import NotFoundError

_REPOSITORY = "princeton-nlp/datasets-for-simcse"
#: Name -> file of the data set ``princeton-nlp/datasets-for-simcse``.
FILES: Mapping[str, str] = {
    "wiki1m_for_simcse": "wiki1m_for_simcse.txt",
    "nli_for_simcse": "nli_for_simcse.csv",
}


def hub_file(name: str, *, offline: bool = False, announce: Callable[[str], None] = lambda message: None) -> Path:
    """Return the file of that name, fetched where it is not in the cache yet.

    Args:
        name: A key of ``FILES``.
        offline: Use the cache only.
        announce: Told in one line before the network is used.

    Raises:
        NotFoundError: It is not in the cache, and cannot be had or must not be fetched.
    """
    wanted = FILES[name]
    try:
        return Path(hf_hub_download(_REPOSITORY, wanted, repo_type="dataset", local_files_only=True))
    except LocalEntryNotFoundError:
        if offline:
            raise NotFoundError(
                f"{wanted} of {_REPOSITORY} is not in the cache (offline); give the file itself: --data {wanted}"
            ) from None
    announce(f"fetching {wanted} of {_REPOSITORY} from the hub")
    try:
        return Path(hf_hub_download(_REPOSITORY, wanted, repo_type="dataset"))
    except (HfHubHTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise NotFoundError(
            f"{wanted} of {_REPOSITORY} cannot be fetched ({reason}); give the file itself: --data {wanted}"
        ) from None
