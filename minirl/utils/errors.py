"""The exceptions that end a run, each with one sentence for the user."""

from collections.abc import Iterator
from contextlib import contextmanager


class ConfigError(Exception):
    """Bad input of the user; the message is one sentence with the value and the remedy."""


class HubError(ConfigError):
    """Something that is neither in the cache nor can be had from the Hub, which cannot be reached."""


class RunError(Exception):
    """A run that cannot continue; the message is one sentence with the cause and the remedy."""


def require(condition: bool, message: str) -> None:
    """ConfigError with `message` unless `condition`."""
    if not condition:
        raise ConfigError(message)


@contextmanager
def ends_the_run() -> Iterator[None]:
    """Makes a RunError of the ValueError, or TypeError, by which an estimator or a loss refuses what it is given."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise RunError(str(error)) from error


class RunFinished(Exception):
    """The run had already done all its steps: no error."""
