import subprocess
import sys

from espnet_fastformer import layers

SCRIPT = """
import sys
import espnet_fastformer.layers
assert not {"torch", "espnet2"} & set(sys.modules)
assert {"AFTConv", "FastSelfAttention"} <= set(dir(espnet_fastformer.layers))
"""


def test_layers_are_imported_when_they_are_used():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
    for name in layers.__all__:
        assert getattr(layers, name).__name__ == name
    assert not hasattr(layers, "AFTSomething")
