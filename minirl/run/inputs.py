"""Command line, problems and verifier: all that is read before the slow import of torch, so that errors in it come at once."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minirl.config.command_line import command_line
from minirl.config.options import Config
from minirl.data.problems import load_problems, unreadable_answers
from minirl.utils.console import is_main_process, say
from minirl.utils.errors import ConfigError, HubError
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import Problem, VerifierError


@dataclass
class Inputs:
    """Inputs of a run. train, test: training and held-out problems, none where a dry run cannot look them up; notes: messages
    on them to print; pool: the VerifierPool, None for a dry run; run: one that is open already, for `open_run`."""

    config: Config
    train: list[Problem]
    test: list[Problem]
    notes: list[str]
    pool: Any
    run: Any = None


def read_inputs(config: Config) -> Inputs:
    """Reads the problems and starts the verifier. ConfigError or VerifierError for bad input; a dry run does without what the
    Hub would have to give."""
    try:
        train, test, notes = load_problems(config.data)
    except HubError as error:
        if not config.dry_run:
            raise
        train, test = [], []
        notes = [
            f"not looked up: {error}. So its size and the passes over it are left out: copy the Hub's cache (HF_HOME) "
            "from a machine that reaches it, or name a file by --data.train=FILE.jsonl"
        ]
    if config.verifier.name == "math":
        notes += unreadable_answers(train, "training") + unreadable_answers(test, "held-out")
    if is_main_process():
        sizes = f"{len(train):,} problems to train on, {len(test):,} held out" if train else f"data {config.data.train}"
        say(f"minirl: {config.algorithm.estimator}, {sizes}")
    v = config.verifier
    return Inputs(config, train, test, notes, None if config.dry_run else VerifierPool(*v.pool(), v.workers, v.timeout))


def inputs_of(program: str, argv: Sequence[str]) -> Inputs:
    """The inputs of a command line. Exits after --help (code 0) and for bad input (code 2)."""
    config = command_line(program, argv)
    try:
        return read_inputs(config)
    except (ConfigError, VerifierError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(2)
