"""The channel between the judge's process and the candidate's: plain values as JSON, everything else by reference.

A value that comes out of it is built anew from exact standard types, so that no comparison, length or hash of the
candidate's own is ever run where expected values are. Anything else arrives as a Remote. Standard library only.
"""

import builtins
import collections
import copy
import datetime
import errno
import functools
import itertools
import json
import operator
import struct
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from minirl.verify.code.remote import BINARY, UNARY, Remote, remote_exception

MESSAGE_BYTES = 32 << 20
DEPTH = 200
_LENGTH = struct.Struct("<I")
# Standard types sent by value: into values that can be sent, and back. The type must be exactly this one.
_PARTS: dict[type, tuple[Callable[[Any], tuple], Callable[..., Any]]] = {
    bytes: (lambda v: (v.hex(),), bytes.fromhex),
    bytearray: (lambda v: (v.hex(),), bytearray.fromhex),
    complex: (lambda v: (v.real, v.imag), complex),
    range: (lambda v: (v.start, v.stop, v.step), range),
    Decimal: (lambda v: (str(v),), Decimal),
    Fraction: (lambda v: (v.numerator, v.denominator), Fraction),
    datetime.date: (lambda v: (v.isoformat(),), datetime.date.fromisoformat),
    datetime.time: (lambda v: (v.isoformat(),), datetime.time.fromisoformat),
    datetime.datetime: (lambda v: (v.isoformat(),), datetime.datetime.fromisoformat),
    datetime.timedelta: (lambda v: (v.days, v.seconds, v.microseconds), datetime.timedelta),
    collections.deque: (lambda v: (list(v), v.maxlen), collections.deque),
    collections.Counter: (lambda v: (dict(v),), collections.Counter),
    collections.OrderedDict: (lambda v: (list(v.items()),), collections.OrderedDict),
    collections.defaultdict: (lambda v: (v.default_factory, dict(v)), collections.defaultdict),
}
_BUILD = {kind.__name__: build for kind, (_, build) in _PARTS.items()}
_ZONES = (type(None), datetime.timezone)  # tzinfo that isoformat tells in full
MUTABLE = (list, dict, set, bytearray, collections.deque)


class Gone(BaseException):
    """The other side closed or broke the channel. Not an Exception: tests must not be able to swallow it."""


class TooLarge(Exception):
    """A value too large or too deeply nested to send."""


class BadTests(BaseException):
    """The tests themselves are at fault, so the response cannot be judged."""


def call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def take(iterator: Any, count: int) -> tuple[list[Any], tuple[str, str] | None]:
    """The next items, and the exception that came after them (name and text)."""
    items: list[Any] = []
    try:
        items.extend(itertools.islice(iterator, count))  # keeps what came before an exception
    except Exception as error:  # noqa: BLE001 - whatever the candidate raises is its answer
        return items, describe(error)
    return items, None


def operate(value: Any, name: str, *other: Any) -> Any:
    if name not in ("__eq__", *BINARY, *UNARY):
        raise AttributeError(name)
    return getattr(operator, name)(value, *other)


def leave(manager: Any, name: str | None) -> Any:
    error = None if name is None else remote_exception(name, "", "exit")
    return type(manager).__exit__(manager, error and type(error), error, None)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": call,
    "value": lambda value: value,
    "getattr": getattr,
    "setattr": setattr,
    "iter": iter,
    "take": take,
    "next": next,
    "len": len,
    "bool": bool,
    "hash": hash,
    "str": str,
    "repr": repr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "operate": operate,
    "isinstance": lambda kind, value: isinstance(value, kind),
    "issubclass": lambda kind, value: issubclass(value, kind),
    "enter": lambda manager: type(manager).__enter__(manager),
    "exit": leave,
}


class Peer:
    """One end of the channel. operations: what the other end may ask for; services: functions that it may call by name.

    heard: whether anything of the other end's choosing may have reached the code that runs here. True until proved.
    undo: how to take back what the other end changed of the objects here, in the order in which it did.
    """

    def __init__(self, sock: Any, names: dict[str, Any], operations: dict[str, Callable[..., Any]]) -> None:
        self.sock, self.names, self.operations = sock, names, operations
        self.lent: dict[int, Any] = {}
        self.remotes: dict[int | str, Remote] = {}
        self.tuples: dict[tuple[str, ...], Any] = {}
        self.services: dict[str, Callable[..., Any]] = {}
        self.undo: list[Callable[[], None]] = []
        self.printed: Callable[[], str] = str  # what was printed here since it was last asked
        self.calls = 0
        self.heard = True

    # Values. JSON's own null, true, false, strings, small integers and floats; everything else is [tag, ...].

    def encode(self, value: Any, depth: int = 0) -> Any:
        kind: Any = type(value)
        if value is None or kind is bool or kind is str or kind is float:
            return value
        if kind is int:
            return value if -(1 << 53) < value < 1 << 53 else ["i", hex(value)]
        if depth > DEPTH:
            raise TooLarge(f"a value nested deeper than {DEPTH}")
        if kind in (list, tuple, set, frozenset):
            return [kind.__name__, [self.encode(item, depth + 1) for item in value]]
        if kind is dict:
            return ["dict", [[self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in value.items()]]
        if kind in _PARTS and type(getattr(value, "tzinfo", None)) in _ZONES:
            return [kind.__name__, [self.encode(part, depth + 1) for part in _PARTS[kind][0](value)]]
        if kind is type and getattr(builtins, name := str(value)[8:-2], None) is value:  # <class 'int'>
            return ["type", name]
        if isinstance(value, Remote):
            return ["yours", value._handle]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            head = [kind.__name__, *value._fields]
            return ["namedtuple", head, [self.encode(item, depth + 1) for item in value]]
        if kind.__module__ == "numpy" and hasattr(value, "tolist"):
            return self.encode(value.tolist(), depth)
        self.lent[id(value)] = value
        return ["mine", id(value)]

    def decode(self, value: Any) -> Any:
        if type(value) is not list:
            return value
        tag, content = value[0], value[1]
        if tag in ("list", "tuple", "set", "frozenset"):
            return getattr(builtins, tag)([self.decode(item) for item in content])
        if tag == "dict":
            return {self.decode(k): self.decode(v) for k, v in content}
        if tag == "i":
            return int(content, 16)
        if tag in _BUILD:
            return _BUILD[tag](*map(self.decode, content))
        if tag == "namedtuple":
            items = [self.decode(item) for item in value[2]]
            if any(callable(item) for name, item in zip(content[1:], items, strict=True) if hasattr(tuple, name)):
                return tuple(items)  # else the candidate would decide what its `count` and `index` say
            kind = self.tuples.get(tuple(content)) or collections.namedtuple(content[0], content[1:])  # type: ignore[misc]
            self.tuples[tuple(content)] = kind
            return kind(*items)
        if tag == "type" and isinstance(getattr(builtins, content), type):
            return getattr(builtins, content)
        if tag == "mine" and type(content) in (int, str):
            return self.remotes.setdefault(content, Remote(self, content))
        if tag == "yours":
            return self.names[content] if type(content) is str else self.lent[content]
        raise ValueError(f"unknown tag {tag!r}")

    # Messages: a length, then JSON. A request is answered by ["=", value, changed arguments, printed text]
    # or ["!", type, text, printed text].

    def send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        if len(data) > MESSAGE_BYTES:
            raise TooLarge(f"a value of {len(data)} bytes")
        try:
            self.sock.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise Gone from error

    def receive(self) -> Any:
        try:
            length = _LENGTH.unpack(self._exactly(_LENGTH.size))[0]
            if length > MESSAGE_BYTES:
                raise Gone
            message = json.loads(self._exactly(length).decode())  # of bytes it would guess the encoding, and import it
        except (OSError, ValueError, RecursionError) as error:
            raise Gone from error
        if type(message) is not list or not message:
            raise Gone
        return message

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self.sock.recv(min(count - len(data), 1 << 20))
            if not part:
                raise Gone
            data += part
        return bytes(data)

    def ask(self, operation: str, handle: int | str, /, *args: Any, **kwargs: Any) -> Any:
        self.calls += operation != "value"
        before = [copied(argument) if isinstance(argument, MUTABLE) else None for argument in args]
        try:
            self.send(["?", operation, handle, [self.encode(a) for a in args], {k: self.encode(v) for k, v in kwargs.items()}])
        except TooLarge as error:
            if self.heard:  # it may have grown from an answer
                raise
            raise BadTests(f"an argument cannot be sent: {error}") from error
        self.heard = True
        while (message := self.receive())[0] == "?":
            self.answer(message)
        try:
            if len(message) == 4 and message[3]:
                sys.stdout.write(message[3])
            if message[0] == "!":
                raise remote_exception(str(message[1]), str(message[2]), operation)
            if message[1] is None:  # else a function could change its question to one that it can answer
                for index, content in message[2]:
                    self.undo.append(functools.partial(overwrite, args[index], before[index]))
                    overwrite(args[index], self.decode(content))
            return self.decode(message[1])
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            if getattr(error, "of_candidate", False):
                raise
            raise Gone from error  # not what our own encoder writes: the candidate wrote on the channel itself

    def answer(self, message: Any) -> None:
        """Does what the other side asked, and sends the result, or the exception's type and text."""
        try:
            _, operation, handle, args, kwargs = message
            target = self.services.get(handle) or self.names[handle] if type(handle) is str else self.lent[handle]
            arguments = [self.decode(a) for a in args]
            before = [json.dumps(a) if type(a) is list else "" for a in args]
            result = self.operations[operation](target, *arguments, **{k: self.decode(v) for k, v in kwargs.items()})
            changed = []
            for index, old in enumerate(before if result is None else []):
                if old and isinstance(arguments[index], MUTABLE):
                    now = self.encode(arguments[index])
                    if json.dumps(now) != old:
                        changed.append([index, now])
            self.send(["=", self.encode(result), changed, self.printed()])
        except Gone:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the candidate raises is its answer
            self.send(["!", *describe(error, handle), self.printed()])


def describe(error: BaseException, handle: Any = None) -> tuple[str, str]:
    if isinstance(error, KeyError) and type(handle) is str and error.args == (handle,):
        return "NameError", f"name {handle!r} is not defined"
    try:
        full = isinstance(error, OSError) and error.errno in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT)
        return "TooLarge" if full else type(error).__name__[:60], str(error)[:300]
    except BaseException:  # noqa: BLE001 - a hostile __str__ or metaclass
        return "Exception", ""


def copied(value: Any) -> Any:
    """A copy of the containers; what else is in them is shared."""
    if isinstance(value, dict):
        new = copy.copy(value)
        new.update({key: copied(item) for key, item in value.items()})
        return new
    if isinstance(value, collections.deque):
        return collections.deque(map(copied, value), value.maxlen)
    if type(value) in (list, tuple, set, frozenset, bytearray):
        return type(value)(map(copied, value))
    return value


def overwrite(target: Any, value: Any) -> None:
    """An argument that a function changed in place, and returned nothing, is changed here too."""
    if type(target) is type(value) and isinstance(target, MUTABLE):
        target.clear()
        (target.update if isinstance(target, (dict, set)) else target.extend)(value)
