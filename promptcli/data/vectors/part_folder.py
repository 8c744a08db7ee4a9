"""A folder of vectors in parts: written, read, looked over, merged, sampled; no more than a block is held.

    _plan.json                      inputs, number of shards, encoder: written first
    part-00000-of-00064.parquet     rows of one shard, in the order of the input; whole or not there
    _manifest.json                  the plan's facts and the rows and checksum of every part: written last

Programs that read Parquet data sets skip what begins with an underscore. Knows nothing of encoders.
"""

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from promptcli.data.given import is_unicode
from promptcli.data.input_files import InputFile, check_unchanged, is_remote
from promptcli.data.tables import Record, open_parquet, read_batches
from promptcli.data.vectors import kind_of, manifest_path, open_sink, output_of
from promptcli.data.vectors.formats import ABOUT, COLUMN, Floats, columns_of, rows_of
from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError
from promptcli.storage.documents import convert, parse_json, read_document, to_json
from promptcli.storage.files import check_name, hold_folder, sha256, write_text
from promptcli.storage.parts import replace_with_sidecar

PLAN, MANIFEST = "_plan.json", "_manifest.json"
#: Rows of a part that are read at once.
BLOCK = 4096

#: What the manifest says as the plan does.
_OF_PLAN = ("rows", "dim", "normalized", "recipe", "fingerprint", "model", "shards", "text_ids", "versions")
#: How parts may hold numbers; int8 is read by the ranges of all rows, which no shard knows.
PRECISIONS = ("float32", "float16")
#: Parts of a folder, at most: their names have five digits.
MOST = 99_999

_PART = re.compile(r"part-\d+-of-\d+\.parquet")
_AGAIN = "run the same `promptcli embed` again"


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class FolderManifest:
    """The content of ``_manifest.json``."""

    rows: int
    dim: int
    normalized: bool
    recipe: dict[str, Any]
    fingerprint: str
    model: dict[str, Any]
    plan: str  #: digest of the plan
    shards: int
    parts: list[Part]
    inputs: list[dict[str, Any]]  #: path, size, sha256 and rows of each
    text: bool  #: there is a column ``text``
    text_ids: bool
    blank: int
    zero: int
    truncated: int
    versions: dict[str, str] = field(default_factory=dict)
    dtype: str = "float32"
    metric: str = "cosine"
    schema_version: int = 1

    def __post_init__(self) -> None:
        names = [part_name(shard, self.shards) for shard in range(len(self.parts))]
        if self.shards != len(self.parts) or [part.path for part in self.parts] != names:
            raise ValueError("the parts are not those of so many shards")
        if self.rows != sum(part.rows for part in self.parts) or self.dim < 1 or self.dtype not in PRECISIONS:
            raise ValueError(f"rows and those of the parts do not fit together, or dtype is not {PRECISIONS}")


class Block(NamedTuple):
    """Some rows of a part."""

    row: int  #: number of the first one, over all parts
    ids: Sequence[int] | Sequence[str]
    texts: list[str] | None
    vectors: Floats  #: (n, d) float32


@dataclass(frozen=True)
class About:
    """What a part says of itself: the metadata of its Parquet file."""

    plan: str
    shard: int
    rows: int
    blank: int
    zero: int
    truncated: int


class PartFolder:
    """A finished folder of parts, for reading.

    Args:
        folder: As ``promptcli embed ... -o FOLDER --shards N`` made it.

    Raises:
        NotFoundError: It is no such folder.
        CheckFailedError: It is unfinished, or its manifest is damaged.

    Example: ``for block in PartFolder(path).blocks(): index.add(block.vectors, block.ids)``
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        if not (folder / MANIFEST).is_file():
            plan = read_plan(folder)
            there = len(parts_there(folder, plan.shards))
            raise CheckFailedError(f"{folder} is unfinished: {there:,} of {plan.shards:,} parts are there; {_AGAIN}")
        self.manifest = read_document(folder / MANIFEST, FolderManifest, mend=_AGAIN)

    def blocks(self, rows: int = BLOCK) -> Iterator[Block]:
        """Yield all rows in order, at most so many at once; no more is held.

        Raises:
            CheckFailedError: A part is missing, damaged, or not of this folder.
        """
        self.check()
        first = 0
        for shard, part in enumerate(self.manifest.parts):
            yield from self.part_blocks(shard, first, rows)
            first += part.rows

    def part_blocks(self, shard: int, first: int, rows: int = BLOCK) -> Iterator[Block]:
        """Yield the rows of one part, of which the first is row ``first`` of the folder; see ``blocks``."""
        self.check_sum(shard)
        yield from read_blocks(self.path / self.manifest.parts[shard].path, first, rows, width=self.manifest.dim)

    def check_sum(self, shard: int) -> None:
        """Read a part whole and compare its checksum: a number with one bit flipped is a number, too.

        Raises:
            CheckFailedError: It is another one.
        """
        part = self.manifest.parts[shard]
        if sha256(self.path / part.path) != part.sha256:
            raise CheckFailedError(
                f"{self.path / part.path}: its sha256 is not the manifest's; delete it, and {_AGAIN}"
            )

    def check(self) -> None:
        """Look at the footer of every part.

        Raises:
            CheckFailedError: A part is missing, cut short, or not of this folder.
        """
        for shard, part in enumerate(self.manifest.parts):
            about = about_part(self.path / part.path)
            if (about.plan, about.shard, about.rows) != (self.manifest.plan, shard, part.rows):
                raise CheckFailedError(f"{self.path / part.path}: not the part that {MANIFEST} names; {_AGAIN}")


def check_folder(folder: Path) -> None:
    """Refuse, before the work, a name that parts could not be written under.

    Raises:
        NotFoundError: Its folder is not there.
        UsageError: It is no folder, or its name is too long or no UTF-8, which Arrow needs.
    """
    check_name(folder, option="-o")
    if not is_unicode(str(folder)):
        raise UsageError(f"-o {str(folder)!r}: parts need a name in UTF-8; give another folder")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"-o {folder}: a file, not a folder; give the name of a folder")
    if not folder.parent.is_dir():
        raise NotFoundError(f"-o {folder}: no folder {str(folder.parent)!r}; make it first")


def check_precision(precision: str) -> None:
    """Refuse what parts cannot hold: numbers that are read by something common to all rows, or packed."""
    if precision not in PRECISIONS:
        raise UsageError(
            f"--precision {precision} of parts is not allowed; give {' or '.join(PRECISIONS)}, or merge first"
        )


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
            f"{folder} is no folder of vectors in parts; make one: promptcli embed FILE -o DIR --shards N"
        )
    return read_document(folder / PLAN, Plan, mend="delete the folder and embed again")


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
    with open_parquet(path, path, mend=_AGAIN) as file:
        metadata = file.metadata
    try:
        about = convert(parse_json((metadata.metadata or {})[ABOUT]), About)
    except (KeyError, ValueError):
        raise CheckFailedError(f"{path} is a Parquet file of another program; take it away, and {_AGAIN}") from None
    if about.rows != metadata.num_rows:
        raise CheckFailedError(
            f"{path}: {metadata.num_rows:,} rows where it says {about.rows:,}; delete it, and {_AGAIN}"
        )
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
    with open_parquet(path, path, mend=f"delete it, and {_AGAIN}", sums=True) as file:
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


def finish(folder: Path, plan: Plan) -> FolderManifest | None:
    """Write the manifest if all parts are there, which are read to check them and for their checksums; return it.

    Any number of processes may do so at once: each writes the same.

    Returns:
        None where parts are missing.

    Raises:
        CheckFailedError: A part is damaged or follows another plan.
    """
    if len(parts_there(folder, plan.shards)) < plan.shards:
        return None
    parts, abouts = [], []
    for shard in range(plan.shards):
        path = folder / part_name(shard, plan.shards)
        abouts.append(about_part(path))
        check_follows(path, abouts[-1], plan, shard)
        _check_pages(path)
        parts.append(Part(path.name, abouts[-1].rows, path.stat().st_size, sha256(path)))
    named = {name: getattr(plan, name) for name in _OF_PLAN}
    counts = {name: sum(getattr(about, name) for about in abouts) for name in ("blank", "zero", "truncated")}
    inputs = [{name: getattr(file, name) for name in ("path", "size", "sha256", "rows")} for file in plan.inputs]
    digest, dtype = plan.digest(), plan.precision
    manifest = FolderManifest(
        **named, **counts, plan=digest, parts=parts, inputs=inputs, text=plan.with_text, dtype=dtype
    )
    write_text(folder / MANIFEST, to_json(manifest, indent=1))
    return manifest


def read_blocks(path: Path, first: int = 0, rows: int = BLOCK, *, width: int) -> Iterator[Block]:
    """Yield the rows of a part, of which the first has the number ``first``.

    Raises:
        CheckFailedError: It is cut short or damaged, or holds other columns than parts do.
    """
    mend = f"delete it, and {_AGAIN}"
    with open_parquet(path, path, mend=mend) as file:
        columns = {field.name: str(field.type) for field in file.schema_arrow}
        if columns.get("id") not in ("int64", "string") or columns.get("text", "string") != "string":
            raise CheckFailedError(f"{path} does not hold the columns of a part; {mend}")
        try:
            names = columns_of(file, path)
            for batch in read_batches(file, rows, columns=names):
                vectors = rows_of(batch.column(COLUMN), f"{path}: rows from {first}")
                others = {name: batch.column(name) for name in names[:-1]}
                if vectors.shape[1] != width or any(column.null_count for column in others.values()):
                    raise UsageError(f"{path}: rows from {first}: not {width} numbers, an id and a text in each")
                ids, texts = others["id"].to_pylist(), others["text"].to_pylist() if "text" in others else None
                yield Block(first, ids, texts, vectors)
                first += len(batch)
        except UsageError as error:
            raise CheckFailedError(f"{error}; {mend}") from None


def faults_of(folder: Path) -> list[str]:
    """Return the faults of a folder, one line each: none where every part is whole and follows the plan.

    Parts are read once: their checksums, row numbers and vectors. Input files that are still where they were are
    compared with their checksums, URLs are not opened; ids of a column are compared with each other, at eight bytes a
    row.

    Raises:
        NotFoundError: It is no such folder.
    """
    plan = read_plan(folder)
    faults = list(_input_faults(folder, plan))
    manifest = None
    try:
        manifest = PartFolder(folder).manifest
    except PromptcliError as error:
        faults.append(str(error))
    if manifest is not None and manifest.plan != plan.digest():
        faults.append(f"{folder / MANIFEST} is not of {PLAN}; delete it and run the same `promptcli embed` again")
    known = {part_name(shard, plan.shards) for shard in range(plan.shards)}
    for path in sorted(folder.iterdir()):
        if _PART.fullmatch(path.name) and path.name not in known:
            faults.append(f"{path} is none of the {plan.shards:,} parts; delete it")
    sums = {part.path: part.sha256 for part in manifest.parts} if manifest else {}
    ids: list[np.ndarray] = []
    for shard in range(plan.shards):
        try:
            ids += _check_part(folder, plan, shard, sums.get(part_name(shard, plan.shards)))
        except PromptcliError as error:
            faults.append(str(error))
    same = _twice(np.concatenate(ids)) if plan.text_ids and ids else 0
    if same:
        faults.append(f"{folder}: {same:,} ids are those of other rows; give every row of the inputs an id of its own")
    return faults


def merge_folder(
    folder: Path, target: Path, *, force: bool = False, progress: Callable[[int], None] = lambda rows: None
) -> int:
    """Write all parts into one vector file with a manifest; return its rows.

    Args:
        folder: Finished.
        target: In the format of its extension; .npy and .safetensors have no room for ids and texts.
        force: It may be replaced.
        progress: Called with the number of rows newly written.

    Raises:
        UsageError: The target cannot be written.
        CheckFailedError: The folder is unfinished, or a part is not the one of the manifest.
    """
    output_of(folder, target, force=force)
    opened = PartFolder(folder)
    facts = {key: value for key, value in asdict(opened.manifest).items() if key not in ("parts", "shards", "plan")}

    def document(digest: str) -> str:
        return to_json({**facts, "precision": opened.manifest.dtype, "output": {"path": target.name, "sha256": digest}})

    with (
        replace_with_sidecar(target, manifest_path(target), document) as temporary,
        temporary.open("xb") as file,
        open_sink(file, kind_of(target), opened.manifest.dim, with_text=opened.manifest.text) as sink,
    ):
        for block in opened.blocks():
            ids: Sequence[int | str] = block.ids
            cells = zip(ids, block.texts or [""] * len(ids), strict=True)
            records = [Record(row, one, text) for row, (one, text) in enumerate(cells, block.row)]
            sink.write(records, block.vectors.astype(opened.manifest.dtype, copy=False))
            progress(len(records))
    return opened.manifest.rows


def sample_folder(folder: Path, rows: int, seed: int = 0) -> Iterator[tuple[Record, np.ndarray]]:
    """Yield so many random rows with their vectors, in their order; only the parts that hold them are read.

    Raises:
        UsageError: There are fewer.
        CheckFailedError: The folder is unfinished, or a part is cut short.
    """
    opened = PartFolder(folder)
    if rows > opened.manifest.rows:
        raise UsageError(f"{folder} has {opened.manifest.rows:,} rows, not {rows:,}; ask for fewer")
    chosen = np.sort(np.random.default_rng(seed).choice(opened.manifest.rows, rows, replace=False))
    first = 0
    for shard, part in enumerate(opened.manifest.parts):
        if np.any((chosen >= first) & (chosen < first + part.rows)):
            for block in opened.part_blocks(shard, first):
                for at in chosen[(chosen >= block.row) & (chosen < block.row + len(block.ids))] - block.row:
                    text = block.texts[at] if block.texts else ""
                    yield Record(block.row + int(at), block.ids[at], text), block.vectors[at]
        first += part.rows


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
        CheckFailedError: With what is wrong.
    """
    path, start = folder / part_name(shard, plan.shards), plan.bounds(shard)[0]
    check_follows(path, about_part(path), plan, shard)
    if digest is not None and sha256(path) != digest:
        raise CheckFailedError(
            f"{path}: its sha256 is not the manifest's; delete it and run the same `promptcli embed`"
        )
    hashes, row = [], start
    for block in read_blocks(path, start, width=plan.dim):
        if not np.isfinite(block.vectors).all():
            raise CheckFailedError(f"{path}: rows from {row}: vectors are not of finite numbers; delete it")
        if plan.text_ids:
            hashes.append(np.array([_hash(str(one)) for one in block.ids if one], dtype=np.uint64))
        elif list(block.ids) != list(range(row, row + len(block.ids))):
            raise CheckFailedError(f"{path}: rows from {row}: ids are not the row numbers; delete it")
        row += len(block.ids)
    return hashes


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _twice(hashes: np.ndarray) -> int:
    hashes.sort()
    return int(np.count_nonzero(hashes[1:] == hashes[:-1]))
