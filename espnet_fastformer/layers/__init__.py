"""Token mixers whose cost is linear in time, called as ESPnet calls attention."""
