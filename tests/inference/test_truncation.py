"""Files that were cut, in every format whose header promises a length."""

import io
import struct

import numpy as np
import pytest
import soundfile

from espnet_fastformer.inference.truncation import missing_bytes

NOISE = np.random.default_rng(0).uniform(-0.5, 0.5, (8000, 2))


def encoded(container: str, subtype: str | None = None, **options) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, NOISE, 16000, subtype, format=container, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("container", "subtype", "options"),
    [
        ("WAV", "PCM_16", {}),
        ("WAV", "PCM_16", {"endian": "BIG"}),
        ("WAV", "FLOAT", {}),
        ("WAV", "ULAW", {}),
        ("WAV", "IMA_ADPCM", {}),
        ("WAVEX", "PCM_24", {}),
        ("RF64", "PCM_16", {}),
        ("W64", "PCM_16", {}),
        ("AIFF", "PCM_16", {}),
        ("AIFF", "FLOAT", {}),
        ("AU", "PCM_16", {}),
        ("NIST", "PCM_16", {}),
        ("NIST", "ULAW", {}),
    ],
)
def test_what_is_missing_is_counted(container, subtype, options):
    content = encoded(container, subtype, **options)
    assert missing_bytes(io.BytesIO(content)) == 0
    for cut in (100, len(content) // 2):
        missing = missing_bytes(io.BytesIO(content[:-cut]))
        # There may be something behind the samples.
        assert cut - 64 <= missing <= cut


@pytest.mark.parametrize("length", [0, 0x7F000000, 0x7FFFF000, 2**31, 2**32 - 1])
def test_header_of_a_stream_promises_nothing(length):
    content = encoded("WAV", "PCM_16")
    assert content[36:40] == b"data"
    stream = content[:40] + struct.pack("<I", length) + content[44:]
    assert missing_bytes(io.BytesIO(stream)) == 0
    content = encoded("AU", "PCM_16")
    stream = content[:8] + struct.pack(">I", length) + content[12:]
    assert missing_bytes(io.BytesIO(stream)) == 0


def test_chunks_before_and_after_the_samples():
    content = encoded("WAV", "PCM_16")
    chunk = b"LIST" + struct.pack("<I", 5) + b"INFO\0\0"
    content = content[:36] + 500 * chunk + content[36:]
    assert missing_bytes(io.BytesIO(content + chunk)) == 0
    assert missing_bytes(io.BytesIO(content[:-100])) == 100


def test_header_that_is_counted_as_samples_is_no_cut():
    content = encoded("WAV", "PCM_16")
    counted = content[:40] + struct.pack("<I", len(content)) + content[44:]
    assert missing_bytes(io.BytesIO(counted)) == 0


@pytest.mark.parametrize("container", ["FLAC", "OGG", "MP3", "CAF"])
def test_other_formats_are_left_to_their_decoders(container):
    content = encoded(container)
    assert missing_bytes(io.BytesIO(content[: len(content) // 2])) == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"RIFF",
        b".snd",
        b"NIST_1A\n",
        b"NIST_1A\n   1024\nsample_count -s4 many\nend_head\n",
        b"riff" + bytes(60),
        b"RF64" + bytes(60),
        b"<html>404 Not Found</html>",
    ],
)
def test_what_is_no_header_is_left_to_libsndfile(content):
    assert missing_bytes(io.BytesIO(content)) == 0


def test_stream_that_cannot_seek_is_not_touched():
    class Pipe(io.BytesIO):
        def seekable(self):
            return False

    pipe = Pipe(encoded("WAV", "PCM_16")[:1000])
    assert missing_bytes(pipe) == 0
    assert pipe.tell() == 0
