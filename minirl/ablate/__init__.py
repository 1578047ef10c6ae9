"""Comparisons of estimators: paired runs of train.py with intervals over seeds and problems. See __main__.py."""
