"""The page of a run: `python -m minirl.view RUN [RUN2]` writes one HTML file that needs no server and no network."""
