"""Checks that a foreign model folder must pass before use, and transformers, imported when needed
and kept silent.

Transformers fills in missing tensors with random numbers and missing tokens with its own, and fails
in many ways on faulty folders. Here the missing parts are refused, and each failure becomes one
line.
"""

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from logging import CRITICAL
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from promptcli.backbones.tokenizer import PieceTokenizer, added_around
from promptcli.backbones.tokenizer_files import SETTINGS, check_tokenizer, json_or_none
from promptcli.errors import (
    NotFoundError,
    OutOfMemoryError,
    PromptcliError,
    UsageError,
    one_line,
    shorten,
)
from promptcli.storage.files import inside, is_below, real_path
from promptcli.storage.typed_documents import convert, parse_json

#: How every checkpoint is loaded; tensors that do not fit are reported to ``check_loaded``.
_LOADING: dict[str, Any] = {
    "dtype": "float32",
    "use_safetensors": True,
    "trust_remote_code": False,
    "output_loading_info": True,
    "ignore_mismatched_sizes": True,
}
#: Configuration fields about how a model is called, not about the model.
_CALLING: dict[str, Any] = {
    "return_dict": True,
    "output_attentions": False,
    "output_hidden_states": False,
    "use_cache": False,
}

TABLE_ROWS = "model.safetensors"
TABLE_MATRICES = frozenset(("embedding.weight", "embeddings"))
#: The tensors of a table in 4 bits.
PACKED_ROWS = "embedding.packed"
PACKED_SCALES = "embedding.scales"
_CUT = 200  # characters of a library's text in a message
#: Sizes that are sides of tensors, and others -> largest allowed value: they determine the memory.
_SIDES = (
    "vocab_size hidden_size intermediate_size embedding_size dim hidden_dim"
    " relative_attention_num_buckets"
).split()
_MOST: dict[str, int] = {
    **dict.fromkeys(
        "num_hidden_layers n_layers n_layer num_attention_heads n_heads n_head".split(), 1000
    ),
    **dict.fromkeys("max_position_embeddings n_positions type_vocab_size".split(), 1 << 24),
}
#: Fields of a configuration that are refused if they are set -> why.
_REFUSED = {
    "quantization_config": "has quantised weights (quantization_config); take the checkpoint they"
    " were made from",
    "is_decoder": "is a decoder (is_decoder in config.json); its tokens do not see the whole"
    " sentence",
}
_ATTENTION = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")
# whose text alone says little
_FAULTS = (LookupError, TypeError, AttributeError, ArithmeticError, AssertionError)


def transformers() -> Any:
    """Return the library with its warnings and bars off, even if it was already imported."""
    import transformers as library
    from transformers.utils import logging

    if logging.get_verbosity() != CRITICAL:  # setting it clears what every logger remembers
        logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return library


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder; its library prints nothing."""
    check_tokenizer(folder)
    return transformers().AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


@contextlib.contextmanager
def opening(what: str) -> Iterator[None]:
    """Turn any error of a library while ``what`` is opened or first used into one line.

    Keep transformers silent.
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
                f"{what} does not fit into the GPU's memory; give bfloat16, the device cpu or a"
                " smaller model",
                parameter="dtype",
            ) from None
        raise UsageError(f"{what} cannot be loaded: {reason(error)}") from None


def tokens_added_after(folder: Path) -> str:
    """Return the text of the tokens that a folder's tokenizer itself adds after an input."""
    with opening(f"the tokenizer of {folder}"):
        tokenizer = load_tokenizer(folder)
        return "".join(tokenizer.convert_ids_to_tokens(added_around(tokenizer)[1]))


def load_model(kind: Any, folder: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Return a model of a transformers class, and the report on its tensors.

    ``options`` replace ours.
    """
    config = transformers().AutoConfig.from_pretrained(folder, trust_remote_code=False, **_CALLING)
    loaded: tuple[Any, dict[str, Any]] = kind.from_pretrained(
        folder, config=config, **{**_LOADING, **options}
    )
    return loaded


def reason(error: BaseException) -> str:
    """Return a library's message as one line, cut."""
    text = one_line(error)
    if not text:
        text = type(error).__name__
    elif isinstance(error, _FAULTS):
        text = f"{type(error).__name__}: {text}"
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_CUT])


def read_config(what: str, folder: Path) -> dict[str, Any]:
    """Return the content of config.json."""
    path = folder / "config.json"
    if not path.exists():
        raise NotFoundError(f"{what} has no config.json: not a model folder")
    try:
        return convert(parse_json(path.read_bytes()), dict[str, Any])
    except (ValueError, OSError) as error:
        raise UsageError(
            f"config.json of {what} is not a JSON object with a model_type: {reason(error)}"
        ) from None


def check_model_folder(what: str, folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a folder that would run foreign code, change the weights on loading, or be completed
    silently.
    """
    if (folder / "adapter_config.json").exists():
        raise UsageError(
            f"{what} has an adapter_config.json: merge it first (peft: merge_and_unload) or move it"
            " away"
        )
    for field in _ATTENTION:
        if "/" in json.dumps(config.get(field)):
            raise UsageError(
                f"config.json of {what} names foreign code ({field} {shorten(config[field])}),"
                " never run"
            )
    for file in ("config.json", SETTINGS):
        if json_field(folder / file, "auto_map"):
            raise UsageError(
                f"{what} comes with its own code (auto_map in {file}), which is never run; try"
                " without it"
            )
    for field, why in _REFUSED.items():
        if config.get(field):
            raise UsageError(f"{what} {why}")
    if not any((folder / name).exists() for name in _VOCABULARIES) and not [
        *folder.glob("*.model")
    ]:
        raise UsageError(f"{what} has no vocabulary: neither a tokenizer.json nor a vocab.txt")


def check_links(what: str, folder: Path, files: Iterable[Path]) -> None:
    """Refuse links that lead out of the folder: its author could otherwise have this machine's
    files copied.
    """
    for path in sorted(files):
        if not is_below(real_path(path), folder):
            raise UsageError(
                f"{what}: {path.relative_to(folder)} is a link that leads out of the folder"
            )


def path_inside(what: str, folder: Path, name: str, file: str) -> Path:
    """Return the path of a name given in a ``file`` of a folder.

    Refuse a path that leads out of the folder.
    """
    path = inside(folder, name)
    if path is None:
        raise UsageError(
            f"{what} has {shorten(name)} in its {file}, which leads out of the folder or is not a"
            " file's name; put it inside"
        )
    return path


def json_field(path: Path, field: str) -> Any:
    """Return a field of a JSON object; None if the field, the file or the object is missing."""
    content = json_or_none(path)
    if not isinstance(content, dict):
        return None
    return content.get(field)


def tensor_names(path: Path) -> frozenset[str]:
    """Return the names of a safetensors file's tensors.

    Empty if it is missing or broken, which loading reports.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            return frozenset(file.keys())
    except (SafetensorError, OSError):
        return frozenset()


def is_table(folder: Path) -> bool:
    """Return whether a folder is a table of words: one row for each token, and no layers."""
    names = tensor_names(folder / TABLE_ROWS)
    if names == {PACKED_ROWS, PACKED_SCALES}:
        return True
    return bool(names & TABLE_MATRICES) and names <= TABLE_MATRICES | {"mapping", "weights"}


def check_model_files(
    what: str, weights: Sequence[Path], config: Mapping[str, Any]
) -> dict[str, str]:
    """Compare config.json with the safetensors headers before memory is taken.

    Return the safetensors dtype of every tensor.
    """
    dtypes: dict[str, str] = {}
    sides: set[int] = set()
    for path in weights:
        try:
            with safe_open(path, framework="pt") as file:
                form = (file.metadata() or {}).get("format", "pt")
                for name in file.keys():
                    stored = file.get_slice(name)
                    dtypes[name] = stored.get_dtype()
                    sides.update(stored.get_shape())
        except (SafetensorError, OSError) as error:
            raise UsageError(f"weights {path.name} of {what} are broken: {reason(error)}") from None
        if form != "pt":
            raise UsageError(
                f"weights {path.name} of {what} are marked format {shorten(form)}, not 'pt';"
                " convert them"
            )
    pad = config.get("pad_token_id")
    rows = config.get("vocab_size")
    if isinstance(pad, int) and isinstance(rows, int) and not 0 <= pad < rows:
        raise UsageError(
            f"config.json of {what} has pad_token_id {pad}; its ids go from 0 to {rows - 1}"
        )
    has = f"config.json of {what} has"
    sizes = {name: size for name, size in config.items() if isinstance(size, int)}
    for name in sizes.keys() & _SIDES:
        if sizes[name] not in sides:
            raise UsageError(f"{has} {name} {sizes[name]}, and none of its tensors has that size")
    for name in sizes.keys() & _MOST.keys():
        if sizes[name] > _MOST[name]:
            raise UsageError(f"{has} {name} {sizes[name]}, which no model of its family has")
    return dtypes


def check_tensors(
    what: str,
    *,
    missing: Collection[str],
    mismatched: Collection[tuple[str, Sequence[int], Sequence[int]]],
) -> None:
    """Refuse missing tensors and tensors of another shape: transformers would fill them with random
    numbers.
    """
    for name, *shapes in sorted(mismatched):
        stored, wanted = (" x ".join(map(str, shape)) or "none" for shape in shapes)
        raise UsageError(
            f"{what} has tensor {name} of shape {stored}, where config.json asks for {wanted}"
        )
    if missing:
        raise UsageError(
            f"{what} lacks {len(missing)} of its tensors (e.g. {min(missing)}): not a whole"
            " checkpoint"
        )


def check_loaded(what: str, model: Any, info: Mapping[str, Any]) -> None:
    """Refuse a model with weights that are missing, of another shape, left over (but for heads), or
    not finite.
    """
    check_tensors(what, missing=info["missing_keys"], mismatched=info["mismatched_keys"])
    body = (f"{model.base_model_prefix}.", *(f"{name}." for name, _ in model.named_children()))
    over = [
        name
        for name in info["unexpected_keys"]
        if name.startswith(body) and "pooler." not in name and "position_ids" not in name
    ]
    if over:
        raise UsageError(
            f"{what} has {len(over)} tensors that its config.json has no place for (e.g."
            f" {min(over)})"
        )
    check_finite(what, model)


def check_finite(what: str, module: Any) -> None:
    """Refuse weights that are not numbers."""
    for name, weight in module.named_parameters():
        if not weight.sum().isfinite() and not weight.isfinite().all():
            raise UsageError(f"{what} has weights that are not finite (NaN or infinite): {name}")


def check_vocabulary(what: str, folder: Path, tokenizer: PieceTokenizer, rows: int) -> None:
    """Compare the tokenizer with the table of v embeddings, ``rows``, and with its folder's own
    files.
    """
    size = len(tokenizer.items())
    highest = tokenizer.highest
    if highest >= rows:
        last = f"{highest} ({shorten(tokenizer.text(highest))}): they are not of one model"
        raise UsageError(
            f"{what} has {rows} rows of embeddings, and its vocabulary goes to id {last}"
        )
    if size < highest + 1:
        for item in _repeated_items(folder):
            raise UsageError(f"the vocabulary of {what} has {shorten(item)} twice")
    if 2 * size <= rows:
        raise UsageError(
            f"{what} has {rows} rows of embeddings, only {size} tokens in its vocabulary: it is cut"
            " short"
        )
    texts = [tokenizer.text(token) for token in sorted(tokenizer.specials)]
    for text in _invented_tokens(folder, [text for text in texts if not tokenizer.knows(text)]):
        raise UsageError(f"the vocabulary of {what} has no {text}, which its tokenizer needs")
    others = {*tokenizer.start, *tokenizer.end, tokenizer.unk}
    if tokenizer.mask is not None and tokenizer.mask in others:
        raise UsageError(
            f"the mask token of {what} is {shorten(tokenizer.mask_text)}, which means something"
            " else"
        )


def _repeated_items(folder: Path) -> list[str]:
    """Return the entries that the vocabulary file has more than once."""
    items: list[str] = []
    if (folder / "tokenizer.json").is_file():  # an object is read as its pairs
        content = json.loads((folder / "tokenizer.json").read_bytes(), object_pairs_hook=list)
        items = [piece for piece, _ in dict(dict(content)["model"])["vocab"]]
    elif (folder / "vocab.txt").is_file():
        items = (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return [item for item, times in Counter(items).items() if times > 1]


def _invented_tokens(folder: Path, added: Sequence[str]) -> list[str]:
    """Return the added special tokens that no file of the folder has: the library invented them."""
    names = [name for name in _VOCABULARIES if (folder / name).is_file()]
    if not names or not added:
        return []  # SentencePiece alone: its families have their own special tokens
    paths = [folder / name for name in (*names, "added_tokens.json")]
    content = "".join(path.read_text(encoding="utf-8") for path in paths if path.is_file())
    decoder = json_field(folder / SETTINGS, "added_tokens_decoder")
    content += json.dumps(decoder, ensure_ascii=False)
    return [text for text in added if json.dumps(text, ensure_ascii=False) not in content]
