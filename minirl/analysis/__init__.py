"""The paper's analyses, each a command: `python -m minirl.analysis NAME` (docs/analysis.md).

samples.py reads, output.py writes. Every other file is one analysis: `analyse` makes a plain result of samples or run folders,
`tables` and `draw` show it.
"""
