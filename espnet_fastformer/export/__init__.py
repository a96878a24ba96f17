"""Trained models as files for other runtimes than ESPnet's."""
