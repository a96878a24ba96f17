"""Writes a SPHERE file to the standard output as WAV, as `sph2pipe -f wav -p` does."""

import io
import sys

import soundfile

audio, rate = soundfile.read(sys.argv[-1], dtype="int16")
# A pipe has no beginning to return to with the length.
wav = io.BytesIO()
soundfile.write(wav, audio, rate, format="WAV")
sys.stdout.buffer.write(wav.getvalue())
