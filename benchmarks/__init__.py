"""Time and memory of layers and encoders against ESPnet's: docs/benchmarks.md."""
