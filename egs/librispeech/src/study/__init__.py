"""The parts of study.py."""
