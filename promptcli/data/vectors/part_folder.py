"""A folder of vectors in parts: written, read, looked over, merged, sampled; no more than a block is held.

    _plan.json                      inputs, number of shards, encoder: written first
    part-00000-of-00064.parquet     rows of one shard, in the order of the input; whole or not there
    _manifest.json                  the plan, what became of the rows, and every part's checksum: written last

Programs that read Parquet data sets skip what begins with an underscore. Knows nothing of encoders.
"""

import hashlib
import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptcli.data.files import is_remote
from promptcli.data.given import is_unicode
from promptcli.data.rows import InputFile, check_unchanged, open_parquet, read_batches
from promptcli.data.vectors import new_vectors, output_of
from promptcli.data.vectors.formats import ABOUT, BLOCK, Block, ParquetRows
from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError
from promptcli.notes import working
from promptcli.storage.documents import convert, parse_json, read_document, to_json
from promptcli.storage.files import check_name, check_output, hold_folder, sha256, write_text

PLAN, MANIFEST = "_plan.json", "_manifest.json"

#: How parts may hold numbers; int8 is read by the ranges of all rows, which no shard knows.
PRECISIONS = ("float32", "float16")
#: Parts of a folder, at most: their names have five digits.
MOST = 99_999

_PART = re.compile(r"part-\d+-of-\d+\.parquet")
_AGAIN = "run the same `promptcli embed` again"
_DELETE = f"delete it, and {_AGAIN}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the parts of a folder have in common; shard i holds the rows ``bounds(i)`` of the inputs."""

    shards: int
    rows: int
    dim: int
    normalized: bool
    with_text: bool
    text_ids: bool  #: ids are text of a column of the inputs; else row numbers over all inputs
    recipe: dict[str, Any]
    fingerprint: str
    model: dict[str, Any]  #: where the backbone came from, and its precision
    inputs: list[InputFile]
    versions: dict[str, str] = field(default_factory=dict)
    precision: str = "float32"
    schema_version: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= min(self.rows, MOST) or self.rows != sum(file.rows for file in self.inputs):
            raise ValueError("shards, rows and those of the inputs do not fit together")
        if self.dim < 1 or self.precision not in PRECISIONS:
            raise ValueError(f"dim is at least 1, precision one of {', '.join(PRECISIONS)}")

    def bounds(self, shard: int) -> tuple[int, int]:
        """Return the rows [start, stop) of a shard."""
        return shard * self.rows // self.shards, (shard + 1) * self.rows // self.shards

    def digest(self) -> str:
        """Return what parts say of the plan they follow: equal wherever the inputs lie and whatever they are called."""
        same = [self.shards, self.rows, self.dim, self.normalized, self.with_text, self.text_ids, self.fingerprint]
        inputs = [[file.size, file.sha256, file.text, file.id] for file in self.inputs]
        return hashlib.sha256(json.dumps([*same, self.precision, self.model.get("dtype"), inputs]).encode()).hexdigest()


@dataclass(frozen=True)
class Part:
    """A part as the manifest names it."""

    path: str  #: its file in the folder
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class FolderManifest(Plan):
    """The content of ``_manifest.json``: the plan, its parts, and what became of the rows."""

    parts: list[Part]
    blank: int
    zero: int
    truncated: int
    metric: str = "cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        bounds = map(self.bounds, range(self.shards))
        wanted = [(part_name(shard, self.shards), stop - start) for shard, (start, stop) in enumerate(bounds)]
        if [(part.path, part.rows) for part in self.parts] != wanted:
            raise ValueError("the parts are not those of so many shards and rows")


@dataclass(frozen=True)
class About:
    """What a part says of itself: the metadata of its Parquet file."""

    plan: str
    shard: int
    rows: int
    blank: int
    zero: int
    truncated: int


class PartFolder(ParquetRows):
    """A finished folder of parts, for reading: the footers are looked at, each checksum before the part's first row.

    Args:
        folder: As ``promptcli embed ... -o FOLDER --shards N`` made it.

    Raises:
        NotFoundError: It is no such folder.
        CheckFailedError: It is unfinished, its manifest is damaged, or a part is missing, cut short or another one.

    Example: ``for block in PartFolder(path).blocks(): index.add(block.vectors, block.ids)``
    """

    def __init__(self, folder: Path) -> None:
        self.manifest = read_folder(folder)
        self._sums = {folder / part.path: part.sha256 for part in self.manifest.parts}
        for shard, path in enumerate(self._sums):
            check_follows(path, about_part(path), self.manifest, shard)
        super().__init__(list(self._sums), hint=_DELETE)

    def check_file(self, path: Path) -> None:
        """Compare the checksum of a whole part, once: a number with one bit flipped is a number, too."""
        if path in self._sums:
            _check_sum(path, self._sums.pop(path))


def read_folder(folder: Path) -> FolderManifest:
    """Return the manifest of a finished folder.

    Raises:
        NotFoundError: It is no folder of parts.
        CheckFailedError: It is unfinished, or the manifest is damaged.
    """
    if not (folder / MANIFEST).is_file():
        plan = read_plan(folder)
        there = len(parts_there(folder, plan.shards))
        raise CheckFailedError(f"{folder} is unfinished: {there:,} of {plan.shards:,} parts are there; {_AGAIN}")
    return read_document(folder / MANIFEST, FolderManifest, hint=_AGAIN)


def check_folder(folder: Path, precision: str) -> None:
    """Refuse, before the work, a name or a precision that parts could not be written by.

    Raises:
        NotFoundError: Its folder is not there.
        UsageError: It is no folder, its name is too long or no UTF-8, which Arrow needs, or another precision.
    """
    if precision not in PRECISIONS:  # read by something common to all rows, or packed
        raise UsageError(
            f"`precision` {precision} of parts is not allowed; give {' or '.join(PRECISIONS)}, or merge first"
        )
    check_name(folder, option="folder")
    if not is_unicode(str(folder)):
        raise UsageError(f"folder {str(folder)!r}: parts need a name in UTF-8; give another folder")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"folder {folder}: a file, not a folder; give the name of a folder")
    if not folder.parent.is_dir():
        raise NotFoundError(f"{folder}: no folder {str(folder.parent)!r}; make it first")


def is_part_folder(path: Path) -> bool:
    """Return whether a path is a folder of parts, finished or not."""
    return (path / PLAN).is_file() or (path / MANIFEST).is_file()


def read_plan(folder: Path) -> Plan:
    """Return the plan of a folder.

    Raises:
        NotFoundError: There is none.
        CheckFailedError: It is damaged.
    """
    if not (folder / PLAN).is_file():
        raise NotFoundError(
            f"{folder} is no folder of vectors in parts; make one: `promptcli embed FILE -o DIR --shards N`"
        )
    return read_document(folder / PLAN, Plan, hint="delete the folder and embed again")


def keep_plan(folder: Path, plan: Plan) -> Plan:
    """Write the plan unless another process was faster; return the one in force."""
    folder.mkdir(exist_ok=True)
    with hold_folder(folder):
        if not (folder / PLAN).is_file():
            write_text(folder / PLAN, to_json(plan, indent=1))
    return read_plan(folder)


def part_name(shard: int, shards: int) -> str:
    """Return the file name of a part, e.g. ``part-00000-of-00064.parquet``."""
    return f"part-{shard:05}-of-{shards:05}.parquet"


def parts_there(folder: Path, shards: int) -> list[int]:
    """Return the shards of which a part is there, whole or not, by one look into the folder."""
    names = {path.name for path in folder.iterdir()}
    return [shard for shard in range(shards) if part_name(shard, shards) in names]


def about_part(path: Path) -> About:
    """Return what a part says of itself; only its footer is read.

    Raises:
        CheckFailedError: It is missing, cut short, or no part.
    """
    if not path.is_file():
        raise CheckFailedError(f"{path} is missing; {_AGAIN}")
    with open_parquet(path, path, hint=_AGAIN) as file:
        metadata = file.metadata
    try:
        about = convert(parse_json((metadata.metadata or {})[ABOUT]), About)
    except (KeyError, ValueError):
        raise CheckFailedError(f"{path} is a Parquet file of another program; take it away, and {_AGAIN}") from None
    if about.rows != metadata.num_rows:
        raise CheckFailedError(f"{path}: {metadata.num_rows:,} rows where it says {about.rows:,}; {_DELETE}")
    return about


def is_whole(folder: Path, plan: Plan, shard: int) -> bool:
    """Return whether the part of a shard is there and whole; a damaged one counts as absent.

    It is read whole while there is no manifest, which has checksums.

    Raises:
        CheckFailedError: It is of another recipe or other inputs.
    """
    path = folder / part_name(shard, plan.shards)
    try:
        about = about_part(path)
        if not (folder / MANIFEST).is_file():
            _check_pages(path)
    except CheckFailedError:
        return False
    check_follows(path, about, plan, shard)
    return True


def _check_pages(path: Path) -> None:
    """Read a part whole and compare the checksums of its pages.

    Raises:
        CheckFailedError: It is damaged.
    """
    with open_parquet(path, path, hint=_DELETE, sums=True) as file:
        deque(read_batches(file, BLOCK), maxlen=0)


def check_follows(path: Path, about: About, plan: Plan, shard: int) -> None:
    """Refuse a part of another plan.

    Raises:
        CheckFailedError: The plan, the shard or its rows are others.
    """
    start, stop = plan.bounds(shard)
    if (about.plan, about.shard, about.rows) != (plan.digest(), shard, stop - start):
        raise CheckFailedError(
            f"{path} was made with another recipe, other options or other inputs than {PLAN} says; delete it, or give"
            " another folder with -o"
        )


def finish(folder: Path, plan: Plan) -> bool:
    """Write the manifest if all parts are there, which are read to check them and for their checksums; return whether.

    Any number of processes may do so at once: each writes the same.

    Raises:
        CheckFailedError: A part is damaged or follows another plan.
    """
    if len(parts_there(folder, plan.shards)) < plan.shards:
        return False
    parts, abouts = [], []
    for shard in range(plan.shards):
        path = folder / part_name(shard, plan.shards)
        abouts.append(about_part(path))
        check_follows(path, abouts[-1], plan, shard)
        _check_pages(path)
        parts.append(Part(path.name, abouts[-1].rows, path.stat().st_size, sha256(path)))
    counts = {name: sum(getattr(about, name) for about in abouts) for name in ("blank", "zero", "truncated")}
    write_text(folder / MANIFEST, to_json(FolderManifest(**vars(plan), **counts, parts=parts), indent=1))
    return True


def merge_parts(folder: str | Path, output: str | Path, *, force: bool = False) -> int:
    """Write all parts into one vector file with a manifest; return its rows.

    Args:
        folder: Finished.
        output: In the format of its extension; .npy and .safetensors have no room for ids and texts.
        force: It may be replaced.

    Raises:
        UsageError: The output cannot be written.
        CheckFailedError: The folder is unfinished, or a part is not the one of the manifest.
    """
    import pyarrow as pa

    folder, target = Path(folder), Path(output)
    parts = PartFolder(folder)
    about = parts.manifest
    output_of(folder, target)
    check_output(target, force=force)
    with (
        working("merge", about.rows) as advance,
        new_vectors(target, about.dim, with_text=about.with_text) as (sink, manifest),
    ):
        manifest |= {key: value for key, value in asdict(about).items() if key not in ("parts", "shards")}
        manifest["dtype"] = about.precision
        for block in parts.blocks():
            texts = block.texts or [""] * len(block.ids)
            batch = pa.record_batch({"id": list(block.ids), "text": texts})
            sink.write(batch, block.vectors.astype(about.precision, copy=False))
            advance(len(batch))
    return about.rows


class Record(NamedTuple):
    """A sampled row."""

    row: int
    id: int | str
    text: str


def sample_parts(folder: str | Path, rows: int, *, seed: int = 0) -> list[tuple[Record, NDArray[np.float32]]]:
    """Return so many random rows with their vectors, in their order; only the parts that hold them are read.

    Raises:
        UsageError: There are fewer.
        CheckFailedError: The folder is unfinished, or a part is cut short.
    """
    parts = PartFolder(Path(folder))
    there = parts.manifest.rows
    if rows > there:
        raise UsageError(f"{folder} has {there:,} rows, not {rows:,}; ask for fewer")
    chosen = np.sort(np.random.default_rng(seed).choice(there, rows, replace=False))
    return [
        (_record(block, place), block.vectors[place])
        for block, places in parts.among(chosen)
        for place in places.tolist()
    ]


def _record(block: Block, place: int) -> Record:
    return Record(block.row + place, block.ids[place], block.texts[place] if block.texts else "")


@dataclass(frozen=True)
class CheckedParts:
    """A folder that was looked over."""

    plan: Plan
    faults: list[str]  #: one line each; none where every part is whole and follows the plan


def check_parts(folder: str | Path) -> CheckedParts:
    """Read every part of a folder once and return what is wrong.

    Looked at are their checksums, row numbers and vectors. Input files that are still where they were are
    compared with their checksums, URLs are not opened; ids of a column are compared with each other, at eight bytes a
    row.

    Raises:
        NotFoundError: It is no such folder.
    """
    folder = Path(folder)
    plan = read_plan(folder)
    faults = list(_input_faults(folder, plan))
    sums: dict[str, str] = {}
    try:
        manifest = read_folder(folder)
        sums = {part.path: part.sha256 for part in manifest.parts}
        if manifest.digest() != plan.digest():
            faults.append(f"{folder / MANIFEST} is not of {PLAN}; {_DELETE}")
    except PromptcliError as error:
        faults.append(str(error))
    known = {part_name(shard, plan.shards) for shard in range(plan.shards)}
    for path in sorted(folder.iterdir()):
        if _PART.fullmatch(path.name) and path.name not in known:
            faults.append(f"{path} is none of the {plan.shards:,} parts; delete it")
    ids: list[np.ndarray] = []
    for shard in range(plan.shards):
        try:
            ids += _check_part(folder, plan, shard, sums.get(part_name(shard, plan.shards)))
        except PromptcliError as error:
            faults.append(str(error))
    hashes = np.sort(np.concatenate(ids)) if ids else np.empty(0)
    if same := int(np.count_nonzero(hashes[1:] == hashes[:-1])):
        faults.append(f"{folder}: {same:,} ids are those of other rows; give every row of the inputs an id of its own")
    return CheckedParts(plan, faults)


def _input_faults(folder: Path, plan: Plan) -> Iterator[str]:
    for file in plan.inputs:
        if is_remote(file.path) or not Path(file.path).exists():
            continue  # an archive of vectors need not have its inputs at hand; a plan from elsewhere may name any URL
        try:
            check_unchanged(file, str(folder))
        except PromptcliError as error:
            yield str(error)


def _check_part(folder: Path, plan: Plan, shard: int, digest: str | None) -> list[np.ndarray]:
    """Return the hashes of a part's ids where they are text.

    Raises:
        PromptcliError: With what is wrong.
    """
    path = folder / part_name(shard, plan.shards)
    check_follows(path, about_part(path), plan, shard)
    if digest is not None:
        _check_sum(path, digest)
    rows, hashes = ParquetRows([path], first=plan.bounds(shard)[0], hint=_DELETE), []
    if rows.shape[1] != plan.dim:
        raise CheckFailedError(f"{path}: vectors of {rows.shape[1]} numbers, not {plan.dim}; {_DELETE}")
    for block in rows.blocks():
        where = f"{path}: rows from {block.row}"
        if not np.isfinite(block.vectors).all():
            raise CheckFailedError(f"{where}: vectors are not of finite numbers; {_DELETE}")
        if plan.text_ids:
            digests = (hashlib.blake2b(str(one).encode(), digest_size=8).digest() for one in block.ids if one)
            hashes.append(np.frombuffer(b"".join(digests), np.uint64))
        elif not isinstance(block.ids, range):
            raise CheckFailedError(f"{where}: ids are not the row numbers; {_DELETE}")
    return hashes


def _check_sum(path: Path, digest: str) -> None:
    if sha256(path) != digest:
        raise CheckFailedError(f"{path}: its sha256 is not the manifest's; {_DELETE}")
