"""The exceptions that end a run, each with one sentence for the user."""


class ConfigError(Exception):
    """Bad input of the user; the message is one sentence with the value and the remedy."""


class RunError(Exception):
    """A run that cannot continue; the message is one sentence with the cause and the remedy."""


def require(condition: bool, message: str) -> None:
    """ConfigError with `message` unless `condition`."""
    if not condition:
        raise ConfigError(message)


class RunFinished(Exception):
    """The run had already done all its steps: no error."""
