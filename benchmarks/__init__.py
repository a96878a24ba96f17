"""Time, memory and errors against ESPnet's: docs/benchmarks.md, docs/accuracy.md."""
