import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from espnet_fastformer.bin import export, plot_attention, transcribe

COMMAND = """
import sys
from espnet_fastformer.bin.common import ends_plainly

@ends_plainly
def main(cmd=None):
    {body}
    return 0

sys.exit(main())
"""


def start(body: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", COMMAND.format(body=body)]
    return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("command", [export, plot_attention, transcribe])
def test_every_command_ends_plainly(command, monkeypatch, capsys):
    def stop():
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "get_parser", stop)
    assert command.main([]) == 130
    assert capsys.readouterr().err == "stopped by Ctrl-C\n"


def test_ctrl_c(tmp_path):
    # It waits for the config.
    fifo = tmp_path / "config.yaml"
    fifo.parent.joinpath("model.pth").touch()
    subprocess.run(["mkfifo", fifo], check=True)
    command = ["espnet_fastformer.bin.export", "--exp", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stderr=subprocess.PIPE, text=True
    )
    writer = None
    while writer is None:
        assert process.poll() is None, process.stderr.read()
        with contextlib.suppress(OSError):  # Nobody reads yet.
            writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    os.close(writer)
    assert process.returncode == 130
    assert error.splitlines()[-1] == "stopped by Ctrl-C"
    assert "Traceback" not in error


def test_ctrl_c_within_an_import():
    process = start("exec('raise KeyboardInterrupt')")
    assert process.communicate()[1] == "stopped by Ctrl-C\n"
    assert process.returncode == 130


def test_nobody_reads_on():
    process = start("[print('line') for _ in range(10**5)]", stdout=subprocess.PIPE)
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141


def test_a_full_disk_under_standard_output():
    with open("/dev/full", "w") as full:
        process = start("print('text')", stdout=full)
    error = process.communicate()[1]
    assert error == "cannot go on: [Errno 28] No space left on device\n"
    assert process.returncode == 1


def test_what_standard_output_cannot_encode_is_escaped(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    process = start("print('ä漢\\\\udce9')", stdout=subprocess.PIPE, encoding="latin-1")
    assert process.communicate() == ("ä\\u6f22\\udce9\n", "")


def test_help_into_a_closed_pipe():
    script = "from espnet_fastformer.bin.main import main; main(['--help'])"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    assert process.stderr.read() == ""


def test_a_directory_that_cannot_be_written_is_found_before_the_model(tmp_path, capsys):
    (tmp_path / "file").touch()
    output = tmp_path / "file" / "out"
    with pytest.raises(SystemExit) as caught:
        transcribe.main(["--exp", "nowhere", "--output_dir", str(output), "talk.wav"])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert f"cannot write to {output}: Not a directory" in error
