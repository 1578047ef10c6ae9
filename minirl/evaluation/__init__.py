"""Evaluation: of the policy on held-out problems while it trains (held_out.py), and of checkpoints on benchmarks (eval.py).

benchmarks.py: records and problems; running.py: samples and verdicts; metrics.py: mathematics; report.py: tables, pictures.
"""
