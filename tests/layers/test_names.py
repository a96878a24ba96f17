import subprocess
import sys

SCRIPT = """
import sys
import espnet_fastformer.layers
assert not {"torch", "espnet2"} & set(sys.modules)
assert {"AFTConv", "FastSelfAttention"} <= set(dir(espnet_fastformer.layers))
from espnet_fastformer.layers import FastSelfAttention, AFTFull, AFTLocal, AFTSimple
from espnet_fastformer.layers import AFTConv
assert AFTConv(8)(*[__import__("torch").zeros(1, 2, 8)] * 3).shape == (1, 2, 8)
try:
    from espnet_fastformer.layers import AFTSomething
except ImportError:
    pass
else:
    raise AssertionError
"""


def test_layers_are_imported_when_they_are_used():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
