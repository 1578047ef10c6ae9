import minirl  # noqa: F401 - under python -m its first lines make an interrupt one line
