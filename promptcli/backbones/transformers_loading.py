"""transformers, imported when it is needed and kept silent, and the files that it opens.

It fails in many ways on faulty folders, and each failure becomes one line.
"""

import contextlib
import sys
from collections.abc import Iterator
from logging import CRITICAL
from pathlib import Path
from typing import Any

from promptcli.backbones.checking import check_tokenizer, describe_error
from promptcli.backbones.tokenizer import added_around
from promptcli.errors import OutOfMemoryError, PromptcliError, UsageError

#: How every checkpoint is loaded; ``check_loaded`` gets the report of tensors that do not fit.
_LOAD_OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "use_safetensors": True,
    "trust_remote_code": False,
    "output_loading_info": True,
    "ignore_mismatched_sizes": True,
}
#: Configuration fields that change how a model is called.
_CALL_FIELDS: dict[str, Any] = {
    "return_dict": True,
    "output_attentions": False,
    "output_hidden_states": False,
    "use_cache": False,
}


def transformers() -> Any:
    """Return the library with its warnings and bars off, even if it was already imported."""
    import transformers as library
    from transformers.utils import logging

    if logging.get_verbosity() != CRITICAL:  # setting it clears the cache of every logger
        logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return library


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder, after the check of its files."""
    check_tokenizer(folder)
    return transformers().AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


@contextlib.contextmanager
def opening(owner: object) -> Iterator[None]:
    """Turn any error of a library into one line, and keep transformers silent, while files of
    ``owner`` are opened or first used.
    """
    if "transformers" in sys.modules:
        transformers()
    try:
        yield
    except PromptcliError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if type(error).__name__ == "OutOfMemoryError":
            raise OutOfMemoryError(
                f"{owner} does not fit into the GPU's memory; give bfloat16, the device cpu or a"
                " smaller model",
                parameter="dtype",
            ) from None
        raise UsageError(f"{owner} cannot be loaded: {describe_error(error)}") from None


def tokens_added_after(folder: Path) -> str:
    """Return the text of the tokens that a folder's own tokenizer adds after an input."""
    with opening(f"the tokenizer of {folder}"):
        tokenizer = load_tokenizer(folder)
        return "".join(tokenizer.convert_ids_to_tokens(added_around(tokenizer)[1]))


def load_model(kind: Any, folder: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Return a model of a transformers class, and the report on its tensors."""
    config = transformers().AutoConfig.from_pretrained(
        folder, trust_remote_code=False, **_CALL_FIELDS
    )
    loaded: tuple[Any, dict[str, Any]] = kind.from_pretrained(
        folder, config=config, **{**_LOAD_OPTIONS, **options}
    )
    return loaded
