"""Audio files that end before their header says.

libsndfile reads what there is of them without complaint.
"""

import os
import re
import struct
from typing import BinaryIO

# Chunks of samples in WAV and its kin, and in AIFF.
_SAMPLES = (b"data", b"SSND")
# A header that is written before the length is known promises nothing, or about as
# much as 31, 32 or 64 bits hold: -1 by ffmpeg, 0x7ffff000 and 0x7f000000 by SoX.
_UNKNOWN = 2**24
# Some programs take the header of a WAV file for data too.
_TOLERANCE = 44


def missing_bytes(file: BinaryIO) -> int:
    """Return how many bytes of samples a file lacks that its header promises.

    Args:
        file: An open file, which is left at another position.

    Returns:
        The number for WAV, RF64, W64, AIFF, AU and NIST SPHERE; 0 for a header that
        does not tell, for streams that cannot seek, and for all other formats: FLAC
        and CAF that are cut cannot be decoded or opened.
    """
    if not file.seekable():
        return 0
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(1024)
    if head.startswith(b"NIST_1A"):
        start, promised = _in_sphere(head)
    elif head.startswith(b".snd") and len(head) >= 12:
        start, promised = struct.unpack_from(">II", head, 4)
    elif head.startswith((b"RIFF", b"RIFX", b"RF64", b"BW64", b"FORM", b"riff")):
        start, promised = _in_chunks(file, head)
    else:
        return 0
    if -promised % 2**31 <= _UNKNOWN:
        return 0
    missing = start + promised - size
    return missing if missing > _TOLERANCE else 0


def _in_chunks(file: BinaryIO, head: bytes) -> tuple[int, int]:
    """Return where the samples start and the bytes of them that are promised."""
    if head.startswith(b"riff"):  # W64
        chunk, position, alignment = struct.Struct("<4s12xQ"), 40, 8
        counted = chunk.size
    else:
        order = ">" if head.startswith((b"RIFX", b"FORM")) else "<"
        chunk, position, alignment = struct.Struct(f"{order}4sI"), 12, 2
        counted = 0
    of_rf64 = 0
    while True:
        file.seek(position)
        content = file.read(chunk.size)
        if len(content) < chunk.size or not any(content):
            return position, 0
        name, length = chunk.unpack(content)
        length = max(length - counted, 0)
        position += chunk.size
        if name == b"ds64":
            of_rf64 = int.from_bytes(file.read(16)[8:], "little")
        if name in _SAMPLES:
            return position, of_rf64 or length
        position += length + -length % alignment


def _in_sphere(head: bytes) -> tuple[int, int]:
    """Return where the samples start and the bytes of them that are promised."""
    fields = dict(re.findall(rb"(\w+) -\w+ (\S+)", head))
    if b"," in fields.get(b"sample_coding", b""):
        return 0, 0  # compressed
    try:
        start = int(head[8:16])
        sizes = [
            int(fields[name])
            for name in (b"sample_count", b"channel_count", b"sample_n_bytes")
        ]
    except (KeyError, ValueError):
        return 0, 0
    return start, sizes[0] * sizes[1] * sizes[2]
