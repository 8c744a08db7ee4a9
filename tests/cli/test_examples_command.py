"""``examples``: files that every other command can read, never over one's own."""

from tests.comparing import refused

NAMES = ["more.csv", "notes.md", "pairs.tsv", "sentences.txt", "triplets.csv"]


def test_the_files_are_written_once(run, here):
    ran = run("examples")
    assert ran.code == 0 and ran.err == ""
    assert sorted(line.split()[0] for line in ran.out.splitlines()) == NAMES
    again = run("examples")
    assert (again.code, again.out) == (0, ran.out)
    (here / "pairs.tsv").write_text("mine")
    refused(run("examples"), 2, "pairs.tsv", "--force")
    assert (here / "pairs.tsv").read_text() == "mine"
    assert run("examples", "--force", "-q").err == ""
    assert (here / "pairs.tsv").read_text().startswith("sentence1\tsentence2\tscore\n")
    assert sorted(path.name for path in here.iterdir() if path.is_file()) == NAMES


def test_a_folder_is_made(run, tmp_path):
    ran = run("examples", tmp_path / "new" / "folder", "--json")
    files = [row["file"] for row in ran.json["files"]]
    assert sorted(files) == [str(tmp_path / "new" / "folder" / name) for name in NAMES]
    refused(run("examples", tmp_path / "new" / "folder" / "more.csv"), 2, "more.csv")
