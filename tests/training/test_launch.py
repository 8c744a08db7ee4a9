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
from promptcli.errors import PromptcliError
from promptcli.training.step import _together, number_of_processes
from tests.comparing import refusal
from tests.processes import Program, ranks_of_two
from tests.training_steps import COLUMNS

TORCHRUN = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "here"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, 1),
        (TORCHRUN, 2),
        (TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}, 1),
        (TORCHRUN | {"WORLD_SIZE": "abc"}, 1),
        (TORCHRUN | {"WORLD_SIZE": "-2"}, 1),
        (TORCHRUN | {"WORLD_SIZE": "²"}, 1),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "here"}, 1),
        ({"RANK": "x", "LOCAL_RANK": "", "WORLD_SIZE": "", "MASTER_ADDR": "here"}, 1),
    ],
)
def test_the_processes_of_a_launch(environ, expected):
    assert number_of_processes(environ) == expected


@pytest.mark.parametrize("left", [{"PMI_SIZE": "4"}, {"LOCAL_RANK": "0"}, {"WORLD_SIZE": "abc"}])
def test_what_a_launcher_left_behind_does_not_stop_a_training(left, bert_folder, monkeypatch):
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    backbone = str(bert_folder)
    trained = pc.train(
        "simcse", COLUMNS[0], backbone=backbone, batch_size=4, steps=1, on="demo:dev", offline=True
    )
    assert trained.facts["processes"] == 1 and os.environ.items() >= left.items()


def test_a_launchers_scales_of_the_loss_change_nothing(bert_folder, monkeypatch):
    backbone = str(bert_folder)
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
    with refusal(
        r"another process of the 2 has ended or never started \(connection closed", PromptcliError
    ):
        with _together(2):
            raise RuntimeError("connection closed by peer")
    with pytest.raises(RuntimeError, match="can't allocate memory"), _together(2):
        raise RuntimeError("can't allocate memory")


def _impatient():
    stopping.PATIENCE_S = 0.1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_process_that_waits_for_another_ends_by_a_signal(number, code, bert_folder, tmp_path):
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
        bert_folder,
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
    _, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    assert b"process 0 of 2 meets the others at 127.0.0.1" in err and b"interrupted" in err
    assert b"Traceback" not in err
