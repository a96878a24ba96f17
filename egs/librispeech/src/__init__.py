"""The recipe's code."""
