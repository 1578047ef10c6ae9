"""What the tests hold in place of the candidate's objects and exceptions. Standard library only.

Every question to a Remote goes to the candidate's process through `Peer.ask` (minirl/verify/code/channel.py).
"""

import builtins
import collections
import operator
from collections.abc import Callable, Iterator
from typing import Any

CHUNK = 1024  # items that an iteration asks for at once, at most
_DUNDERS = ("__name__", "__qualname__", "__dict__", "__annotations__", "__wrapped__")


class Remote:
    """An object that lives in the other process. Its answers are plain values or Remotes again.

    No operator asks the candidate a question that holds the value to compare with: its objects equal no plain value, `in`
    compares their items here, and an operator with a plain operand is a TypeError. Between two objects of the candidate's
    own its class decides, as any of its methods does that the tests call.
    """

    __slots__ = ("_ahead", "_handle", "_peer")

    def __init__(self, peer: Any, handle: int | str) -> None:
        for name, value in (("_peer", peer), ("_handle", handle), ("_ahead", collections.deque())):
            object.__setattr__(self, name, value)

    def _ask(self, operation: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._peer.ask(operation, self._handle, *args, **kwargs)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # positional: a function may have an argument called `self`
        return self._ask("call", *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _DUNDERS:
            raise AttributeError(name)
        return self._ask("getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("setattr", name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Remote):
            return NotImplemented
        return self._handle == other._handle or self._ask("operate", "__eq__", other) is True

    def __hash__(self) -> int:
        return operator.index(self._ask("hash"))

    def __bool__(self) -> bool:
        return self._ask("bool") is True

    def __len__(self) -> int:
        return operator.index(self._ask("len"))

    def __getitem__(self, key: Any) -> Any:
        return self._ask("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        self._ask("delitem", key)

    def __contains__(self, value: Any) -> bool:
        return any(item is value or item == value for item in self)

    def __iter__(self) -> Any:
        iterator = self._ask("iter")
        if not isinstance(iterator, Remote):
            raise TypeError("iter() gave no iterator")
        return _items(iterator)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """For numpy, which else would take an object that says it is empty for an empty array, equal to whatever one likes."""
        import numpy

        if not (items := list(self)):
            raise TypeError("an object of the candidate without items is no array")
        return numpy.array(items, dtype=dtype)

    def __next__(self) -> Any:
        return self._ahead.popleft() if self._ahead else self._ask("next")

    def __deepcopy__(self, _: object) -> Any:
        raise TypeError("an object of the candidate cannot be copied")

    def __str__(self) -> str:
        return _text(self._ask("str"))

    def __repr__(self) -> str:
        return _text(self._ask("repr"))

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Remote) and self._ask("isinstance", instance) is True

    def __subclasscheck__(self, kind: type) -> bool:
        return isinstance(kind, Remote) and self._ask("issubclass", kind) is True

    def __enter__(self) -> Any:
        return self._ask("enter")

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> bool:
        """Only an exception of the candidate's own may be swallowed, never a failed assertion of the tests."""
        swallowed = self._ask("exit", None if kind is None else kind.__name__)
        return swallowed is True and getattr(error, "of_candidate", False)


def _binary(name: str) -> Callable[[Remote, Any], Any]:
    return lambda self, other: self._ask("operate", name, other) if isinstance(other, Remote) else NotImplemented


def _unary(name: str) -> Callable[[Remote], Any]:
    return lambda self: self._ask("operate", name)


_COMPARE = ["__lt__", "__le__", "__gt__", "__ge__"]
_NUMBER = ["__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__", "__matmul__"]
BINARY = [*_COMPARE, *_NUMBER, "__and__", "__or__", "__xor__", "__lshift__", "__rshift__"]
UNARY = ["__neg__", "__pos__", "__abs__", "__invert__"]
for _name in BINARY:
    setattr(Remote, _name, _binary(_name))
for _name in UNARY:
    setattr(Remote, _name, _unary(_name))


def _items(iterator: Remote) -> Iterator[Any]:
    """The items of an iterator, asked for in chunks that grow. What was asked for too early is left to next()."""
    count = 1
    while True:
        items, error = iterator._ask("take", count)
        iterator._ahead.extend(items)
        while iterator._ahead:
            yield iterator._ahead.popleft()
        if error is not None:
            raise remote_exception(str(error[0]), str(error[1]), "next")
        if len(items) < count:
            return
        count = min(2 * count, CHUNK)


def _text(value: Any) -> str:
    return value if type(value) is str else "<object of the candidate>"


def remote_exception(name: str, text: str, operation: str) -> Exception:
    """The candidate's exception, for the tests to see: the built-in type of that name, or a new one.

    StopIteration is real only as the end of an iterator: raised by a call, it would end a loop of map() in the tests.
    """
    kind = getattr(builtins, name, None) if name != "StopIteration" or operation == "next" else None
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = type(name if name.isidentifier() else "Exception", (Exception,), {})
    try:
        error = kind(text)
    except TypeError:  # UnicodeDecodeError and its like take more arguments
        error = type(name, (Exception,), {})(text)
    error.of_candidate = True  # type: ignore[attr-defined]
    return error
