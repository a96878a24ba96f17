"""The transducer loss that ESPnet imports, by the one for CPUs that it ships."""

from espnet2.asr.transducer.rnnt_multi_blank.rnnt_multi_blank import (
    RNNTLossNumba as RNNTLoss,
)

__all__ = ["RNNTLoss"]
