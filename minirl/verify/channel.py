"""The channel between the judge's process and the candidate's: plain values as JSON, everything else by reference.

A value that comes out of it is built anew from exact built-in types, so that no comparison, length or hash of the
candidate's own is ever run where expected values are. Anything else arrives as a Remote, equal to nothing but itself.
Standard library only.
"""

import builtins
import collections
import json
import struct
from collections.abc import Callable
from typing import Any

MESSAGE_BYTES = 32 << 20
DEPTH = 200
_LENGTH = struct.Struct("<I")
_AS_DICT = (collections.OrderedDict, collections.defaultdict, collections.Counter)


class Gone(BaseException):
    """The other side closed or broke the channel. Not an Exception: tests must not be able to swallow it."""


class TooLarge(Exception):
    """A value too large or too deeply nested to send."""


class BadTests(BaseException):
    """The tests themselves are at fault, so the response cannot be judged."""


class Remote:
    """An object that lives in the candidate's process. Its answers are plain values or Remotes again."""

    __slots__ = ("_handle", "_peer")

    def __init__(self, peer: "Peer", handle: int | str) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_handle", handle)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._peer.ask("call", self._handle, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._peer.ask("getattr", self._handle, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("setattr", self._handle, name, value)

    def __bool__(self) -> bool:
        raise TypeError("the candidate returned an object where a plain value was needed")

    def __iter__(self) -> Any:
        return iter(self._peer.ask("list", self._handle))

    def __next__(self) -> Any:
        return self._peer.ask("next", self._handle)

    def __len__(self) -> int:
        return self._peer.ask("len", self._handle)

    def __getitem__(self, key: Any) -> Any:
        return self._peer.ask("getitem", self._handle, key)

    def __contains__(self, key: Any) -> bool:
        return self._peer.ask("contains", self._handle, key) is True

    def __str__(self) -> str:
        text = self._peer.ask("str", self._handle)
        return text if type(text) is str else "<object of the candidate>"


def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": call,
    "value": lambda value: value,
    "getattr": getattr,
    "setattr": setattr,
    "list": list,
    "next": next,
    "len": len,
    "str": str,
    "getitem": lambda value, key: value[key],
    "contains": lambda value, key: key in value,
}


class Peer:
    """One end of the channel. operations: what the other end may ask for (the judge allows calls of what it lent)."""

    def __init__(self, sock: Any, names: dict[str, Any], operations: dict[str, Callable[..., Any]]) -> None:
        self.sock, self.names, self.operations = sock, names, operations
        self.lent: dict[int, Any] = {}
        self.remotes: dict[int | str, Remote] = {}
        self.calls = 0

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
        if kind is dict or kind in _AS_DICT:
            return ["dict", [[self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in value.items()]]
        if kind is bytes or kind is bytearray:
            return [kind.__name__, value.hex()]
        if kind is complex:
            return ["complex", value.real, value.imag]
        if kind is type and getattr(builtins, name := str(value)[8:-2], None) is value:  # <class 'int'>
            return ["type", name]
        if isinstance(value, Remote):
            return ["yours", value._handle]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self.encode(tuple(value), depth)
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
        if tag in ("bytes", "bytearray"):
            return getattr(builtins, tag).fromhex(content)
        if tag == "complex":
            return complex(float(content), float(value[2]))
        if tag == "type" and isinstance(getattr(builtins, content), type):
            return getattr(builtins, content)
        if tag == "mine" and type(content) in (int, str):
            return self.remotes.setdefault(content, Remote(self, content))
        if tag == "yours":
            return self.names[content] if type(content) is str else self.lent[content]
        raise ValueError(f"unknown tag {tag!r}")

    # Messages: a length, then JSON. A request is answered by ["=", value, changed arguments] or ["!", type, text].

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
            message = json.loads(self._exactly(length))
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

    def ask(self, operation: str, handle: int | str, *args: Any, **kwargs: Any) -> Any:
        self.calls += operation == "call"
        try:
            self.send(["?", operation, handle, [self.encode(a) for a in args], {k: self.encode(v) for k, v in kwargs.items()}])
        except TooLarge as error:
            raise BadTests(f"an argument cannot be sent: {error}") from error
        while (message := self.receive())[0] == "?":
            self.answer(message)
        try:
            if message[0] == "!":
                raise remote_exception(str(message[1]), str(message[2]), operation)
            if message[1] is None:  # else a function could change its question to one that it can answer
                for index, content in message[2]:
                    overwrite(args[index], self.decode(content))
            return self.decode(message[1])
        except (IndexError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            if getattr(error, "of_candidate", False):
                raise
            raise Gone from error  # not what our own encoder writes: the candidate wrote on the channel itself

    def answer(self, message: Any) -> None:
        """Does what the other side asked, and sends the result, or the exception's type and text."""
        try:
            _, operation, handle, args, kwargs = message
            target = self.names[handle] if type(handle) is str else self.lent[handle]
            arguments = [self.decode(a) for a in args]
            before = [json.dumps(a) if type(a) is list else "" for a in args]
            result = self.operations[operation](target, *arguments, **{k: self.decode(v) for k, v in kwargs.items()})
            changed = []
            for index, old in enumerate(before if result is None else []):
                if old and type(arguments[index]) in (list, dict, set, bytearray):
                    now = self.encode(arguments[index])
                    if json.dumps(now) != old:
                        changed.append([index, now])
            self.send(["=", self.encode(result), changed])
        except Gone:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the candidate raises is its answer
            self.send(["!", *describe(error, handle)])


def describe(error: BaseException, handle: Any = None) -> tuple[str, str]:
    if isinstance(error, KeyError) and type(handle) is str and error.args == (handle,):
        return "NameError", f"name {handle!r} is not defined"
    try:
        return type(error).__name__[:60], str(error)[:300]
    except BaseException:  # noqa: BLE001 - a hostile __str__ or metaclass
        return "Exception", ""


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


def overwrite(target: Any, value: Any) -> None:
    """An argument that a function changed in place, and returned nothing, is changed here too."""
    if type(target) is not type(value):
        return
    if type(target) is list or type(target) is bytearray:
        target[:] = value
    elif type(target) in (dict, set):
        target.clear()
        target.update(value)
