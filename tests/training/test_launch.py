"""Variables of launchers: whole launches, what they leave behind, and a process whose others never
come.
"""

import os
import signal
import socket
import time

import numpy as np
import pytest

import promptcli as pc
from promptcli.cli import stopping
from promptcli.errors import PromptcliError, UsageError
from promptcli.training.launch import Launch, read_launch
from promptcli.training.processes import _together
from tests.learning import COLUMNS
from tests.processes import Program, ranks_of_two

TORCHRUN = {
    "WORLD_SIZE": "2",
    "RANK": "1",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "here",
    "MASTER_PORT": "29571",
}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "MASTER_ADDR": "there"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Launch()),
        (TORCHRUN, Launch(2, 1, "here:29571")),
        (TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}, Launch()),
        (MPIRUN, Launch(4, 3, "there:29500")),
        ({"PMI_SIZE": "4"}, Launch(left_behind="PMI_SIZE=4")),
        ({"PMI_SIZE": "4", "PMI_RANK": "0"}, Launch(left_behind="PMI_SIZE=4")),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "here"}, Launch(left_behind="WORLD_SIZE=2")),
        ({"LOCAL_RANK": "0"}, Launch()),
        (
            {"RANK": "x", "LOCAL_RANK": "", "WORLD_SIZE": "", "MASTER_PORT": "tcp://10.0.0.1:80"},
            Launch(),
        ),
    ],
)
def test_the_processes_of_a_launch(environ, expected):
    assert read_launch(environ) == expected


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"WORLD_SIZE": "abc"}, "the variable WORLD_SIZE is 'abc', not a number"),
        ({"WORLD_SIZE": "-2"}, "the variable WORLD_SIZE is '-2', not a number"),
        ({"RANK": "²"}, "the variable RANK is '²', not a number"),
        ({"LOCAL_RANK": "one"}, "the variable LOCAL_RANK is 'one', not a number"),
        ({"MASTER_PORT": "tcp://10.0.0.1:80"}, "the variable MASTER_PORT is 'tcp:"),
        ({"RANK": "2"}, "RANK=2 is no process of WORLD_SIZE=2"),
    ],
)
def test_a_launch_that_cannot_be(changes, said):
    with pytest.raises(UsageError, match=said):
        read_launch(TORCHRUN | changes)


@pytest.mark.parametrize("left", [{"PMI_SIZE": "4"}, {"LOCAL_RANK": "0"}])
def test_what_a_launcher_left_behind_does_not_stop_a_training(
    left, tiny_folder, monkeypatch, notes
):
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    backbone = str(tiny_folder("bert"))
    trained = pc.train(
        "simcse", COLUMNS[0], backbone=backbone, batch_size=4, steps=1, on="demo:dev", offline=True
    )
    assert trained.facts["processes"] == 1 and os.environ.items() >= left.items()
    alone = [line for line in notes if "this one trains alone" in line]
    assert [line.split()[0] for line in alone] == [
        f"{name}={value}" for name, value in left.items() if "SIZE" in name
    ]


def test_a_launchers_scales_of_the_loss_change_nothing(tiny_folder, monkeypatch):
    backbone = str(tiny_folder("bert"))
    settings = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "3", "ACCELERATE_MIXED_PRECISION": "fp16"}
    vectors = []
    for variables in ({}, settings):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        trained = pc.train(
            "simcse", COLUMNS[0], backbone=backbone, batch_size=4, steps=2, on="demo:dev"
        )
        vectors.append(trained.encoder.encode(COLUMNS[0][:2]))
    assert np.array_equal(*vectors)


def test_a_process_whose_others_have_ended_says_so():
    with pytest.raises(
        PromptcliError,
        match=r"another process of the 2 has ended or was never there \(connection closed",
    ):
        with _together(2):
            raise RuntimeError("connection closed by peer")
    with pytest.raises(RuntimeError, match="can't allocate memory"), _together(2):
        raise RuntimeError("can't allocate memory")


def _impatient():
    stopping.PATIENCE = 0.1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_process_that_waits_for_another_ends_by_a_signal(number, code, tiny_folder, tmp_path):
    """The first of two, whose second never comes, has opened the door at which torch waits for
    it.
    """
    (tmp_path / "text.txt").write_text("\n".join(COLUMNS[0]))
    first, _ = ranks_of_two()
    words = [
        "train",
        "simcse",
        "--data",
        tmp_path / "text.txt",
        "--batch-size",
        "4",
        "--backbone",
        tiny_folder("bert"),
        "--offline",
    ]
    process = Program(
        *words, environment=first | {"PROMPTCLI_HOME": str(tmp_path / "home")}, before=_impatient
    )
    while process.poll() is None:
        with socket.socket() as door:
            if door.connect_ex((first["MASTER_ADDR"], int(first["MASTER_PORT"]))) == 0:
                break
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert b"process 0 of 2 meets the others at 127.0.0.1:" in err and b"interrupted" in err
    assert b"Traceback" not in err
