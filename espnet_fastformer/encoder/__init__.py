"""ESPnet encoders built around a mixer that is linear in time."""
