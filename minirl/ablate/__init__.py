"""Estimators side by side: the same start, order of prompts and sampling seeds for each, and numbers that one can believe."""
