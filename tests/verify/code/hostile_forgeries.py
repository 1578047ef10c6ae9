"""Programs that try to pass without the answer. See hostile_programs.py."""
# ruff: noqa: E501 - a line of a program is clearer whole

WRITE = """
import os, json
def write(*messages):
    for m in messages:
        m = m if isinstance(m, bytes) else json.dumps(m).encode()
        os.write(3, m if m[:1] == b"\\xff" else len(m).to_bytes(4, "little") + m)
"""

FORGERIES = [
    ("os._exit when loaded", "import os\nos._exit(0)", {"Crashed"}),
    ("sys.exit when loaded", "import sys\nsys.exit(0)", {"SystemExit"}),
    ("os._exit in the call", "import os\ndef solve(x): os._exit(0)", {"Crashed"}),
    ("sys.exit in the call", "import sys\ndef solve(x): sys.exit(0)", {"SystemExit"}),
    ("quit", "quit()", {"SystemExit", "NameError"}),
    ("prints a verdict", 'print(\'{"status": "right"}\')\ndef solve(x): pass', {"WrongAnswer"}),
    (
        "writes a verdict to every descriptor",
        'import os\nfor fd in range(64):\n    try: os.write(fd, b\'{"status": "right"}\')\n    except OSError: pass\nos._exit(0)',
        {"Crashed"},
    ),
    (
        "floods the channel with answers",
        "import os, json\nm = json.dumps(['=', True, []]).encode()\nfor _ in range(50): os.write(3, len(m).to_bytes(4, 'little') + m)",
        {"WrongAnswer", "Crashed", "TypeError"},
    ),
    ("garbage on the channel", "import os\nos.write(3, b'\\xff' * 4096)\nos._exit(0)", {"Crashed"}),
    ("broken JSON on the channel", "import os\nos.write(3, b'\\x05\\0\\0\\0[[[[[')\nos._exit(0)", {"Crashed"}),
    (
        "a setup error on the channel",
        "import os, json\nm = json.dumps(['error', 'x']).encode()\nos.write(3, len(m).to_bytes(4, 'little') + m)\nos._exit(0)",
        {"error", "x", "Crashed"},
    ),
    (
        "an answer equal to everything",
        "class E:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "    def __bool__(self): return True\ndef solve(x): return E()",
        {"WrongAnswer"},
    ),
    (
        "an int equal to everything",
        "class E(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef solve(x): return E(0)",
        {"WrongAnswer"},
    ),
    (
        "a str, list and float equal to everything",
        "def make(t): return type('E', (t,), {'__eq__': lambda *_: True, '__ne__': lambda *_: False, '__hash__': None})\n"
        "def solve(x): return [make(str)(), make(list)(), make(float)()][x % 3]",
        {"WrongAnswer"},
    ),
    (
        "a metaclass that is equal to everything",
        "class M(type):\n    def __eq__(self, other): return True\n    __hash__ = type.__hash__\n"
        "    def __instancecheck__(self, other): return True\nclass E(metaclass=M): pass\ndef solve(x): return E",
        {"WrongAnswer"},
    ),
    (
        "patched built-ins",
        "import builtins\nfor n in ('all', 'any', 'isinstance', 'abs', 'len', 'bool', 'type', 'getattr'):\n"
        "    setattr(builtins, n, lambda *a, **k: True)\ndef solve(x): return 0",
        {"WrongAnswer", "Crashed", "TypeError", "Exception", "AttributeError", "bool"},
    ),
    (
        "patched harness",
        "import sys\nh = sys.modules['minirl.verify.code.harness']\nh.same = lambda *_: True\nh.run_calls = h.run_script = lambda *_: None\n"
        "h.judge = lambda *_: {'status': 'right'}\ndef solve(x): return 0",
        {"WrongAnswer"},
    ),
    (
        "an exception that claims to be a pass",
        "class right(BaseException):\n    status = 'right'\n    def __str__(self): return 'right'\ndef solve(x): raise right",
        {"right"},
    ),
    (
        "looks up the stack",
        "import sys\ndef solve(x):\n    frame = sys._getframe()\n    while frame:\n        for scope in (frame.f_locals, frame.f_globals):\n"
        "            for value in list(scope.values()):\n                text = repr(value)\n                if 'solve(%d) ==' % x in text:\n"
        "                    return int(text.split('solve(%d) ==' % x)[1].split()[0])\n        frame = frame.f_back\n    return None",
        {"WrongAnswer"},
    ),
    (
        "looks through all objects",
        "import gc\ndef solve(x):\n    for thing in gc.get_objects():\n        for text in [thing] + gc.get_referents(thing):\n"
        "            if type(text) is str and ' '.join(['assert', 'solve(']) in text: return x * x\n    return None",
        {"WrongAnswer", "Timeout", "<timeout>"},
    ),
    (
        "searches its memory",
        "import ctypes, re\ndef solve(x):\n    wanted = re.compile(rb'assert solve\\(%d\\) == (\\d+)' % x)\n"
        "    for line in open('/proc/self/maps'):\n        m = re.match(r'(\\w+)-(\\w+) rw', line)\n        if m:\n"
        "            a, b = (int(g, 16) for g in m.groups())\n            found = wanted.search(ctypes.string_at(a, b - a))\n"
        "            if found: return int(found[1])\n    return None",
        {"WrongAnswer", "FileNotFoundError", "PermissionError", "<timeout>", "MemoryLimit"},
    ),
    (
        "reads from every descriptor",
        "import os\ndef solve(x):\n    for fd in range(64):\n        if fd == 3: continue\n        try:\n            os.set_blocking(fd, False)\n"
        "            if b'solve' in os.read(fd, 1 << 20): return x * x\n        except OSError: pass\n    return None",
        {"WrongAnswer"},
    ),
    (
        "an exit handler that prints a verdict",
        'import atexit, os\natexit.register(lambda: [os.write(n, b\'{"status": "right"}\') for n in (1, 2)])\ndef solve(x): return 0',
        {"WrongAnswer"},
    ),
    (
        "a thread that answers",
        "import threading, os, json\nm = json.dumps(['=', 9, []]).encode()\n"
        "def run():\n    while True: os.write(3, len(m).to_bytes(4, 'little') + m)\n"
        "threading.Thread(target=run, daemon=True).start()\ndef solve(x): return None",
        {"WrongAnswer", "Crashed", "TypeError"},
    ),
    *[
        (f"writes {name} on the channel", f"{WRITE}write({message})", {"Crashed", "WrongAnswer", "TypeError", *labels})
        for name, message, labels in [
            ("a length without end", "b'\\xff\\xff\\xff\\x7f'", set()),
            ("half a message", "b'\\x05\\0\\0\\0[1'), __import__('time').sleep(9", {"<timeout>"}),
            ("an integer without end", "b'[\\\"=\\\",' + b'9' * 9999 + b']'", set()),
            ("nested lists", "b'[' * 10**6", set()),
            ("a set of lists", "['=', ['set', [['list', []]]], []]", set()),
            ("a tag of its own", "['=', ['eval', '9'], []]", set()),
            ("a built-in that is no type", "['=', ['type', 'eval'], []]", set()),
            ("a named tuple with source in its name", "['=', ['namedtuple', ['P', 'a=1): pass #'], [1]], []]", set()),
            ("a named tuple with __eq__", "['=', ['namedtuple', ['P', '__eq__'], [1]], []]", set()),
            ("a number that is none", "['=', ['Decimal', ['nine']], []]", set()),
            ("a fraction over zero", "['=', ['Fraction', [9, 0]], []]", set()),
            ("a handle of the judge's", "['=', ['yours', 1], []]", set()),
            ("a name of the judge's", "['=', ['yours', 'solve'], []]", set()),
            ("arguments that changed", "['=', None, [[0, 9], [-1, ['list', []]], [7, 1]]]", set()),
            ("no answer", "['=']", set()),
            ("an object as an answer", "{'=': 9}", set()),
            ("a call of the tests", "['?', 'call', 'check', [], {}]", set()),
            ("a look at the tests", "['?', 'getattr', 0, ['__globals__'], {}]", set()),
            ("an operation of its own", "['?', 'eval', 1, ['9'], {}]", set()),
            ("questions without end", "*[['?', 'call', 0, [], {}]] * 10**5", {"<timeout>"}),
        ]
    ],
    (
        "an object that lies about its class",
        "class E:\n    __class__ = int\n    def __int__(self): return 9\n    __index__ = __hash__ = __int__\ndef solve(x): return E()",
        {"WrongAnswer"},
    ),
    (
        "an object whose every operator says yes",
        "def yes(*_): return True\nE = type('E', (), {f'__{n}__': yes for n in 'eq ne lt le gt ge sub rsub contains bool abs'.split()})\ndef solve(x): return E()",
        {"WrongAnswer"},
    ),
    (
        "an object that rebuilds as the answer",
        "class E:\n    def __reduce__(self): return int, ('9',)\ndef solve(x): return E()",
        {"WrongAnswer"},
    ),
    ("a repr without end", "class E:\n    def __repr__(self): return repr(self)\ndef solve(x): return [E()]", {"WrongAnswer"}),
    (
        "a repr that exits",
        "import os\nclass E:\n    def __repr__(self): os._exit(0)\ndef solve(x): return E()",
        {"WrongAnswer", "Crashed"},
    ),
    ("patched JSON", "import json\njson.dumps = lambda m: '[\"=\", 9, []]'\ndef solve(x): pass", {"WrongAnswer", "TypeError"}),
    (
        "a trace of the harness",
        "import sys, threading\nseen = []\ndef look(frame, *_):\n    seen.extend(v for v in frame.f_locals.values() if type(v) is int and v > 5)\n    return look\n"
        "def solve(x):\n    sys.settrace(look)\n    sys._getframe(1).f_trace = look\n    return seen[-1] if seen else None",
        {"WrongAnswer"},
    ),
    (
        "an audit hook that raises",
        "import sys\ndef hook(*_): raise RuntimeError\nsys.addaudithook(hook)\ndef solve(x): return open('/x')",
        {"RuntimeError", "Crashed"},
    ),
    (
        "a timer that raises in the harness",
        "import signal\ndef ring(*_): raise SystemExit\nsignal.signal(signal.SIGALRM, ring)\nsignal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)\ndef solve(x): return None",
        {"WrongAnswer", "Crashed", "SystemExit"},
    ),
    (
        "a finalizer that answers",
        WRITE + "class E:\n    def __del__(self): write(['=', 9, []])\ndef solve(x): E()",
        {"WrongAnswer"},
    ),
    ("an exception with half a character", "raise type('E', (Exception,), {})('\\ud800')", {"E"}),
    ("a name without end", "raise type('E' * 10**6, (Exception,), {})('x' * 10**7)", {"E" * 60}),
    ("a table too large to send", "answer = solve = ['x' * 10**7] * 9", {"TypeError", "OutputLimit"}),
    (
        "a child that goes on as the program",
        "import os\nif os.fork(): os._exit(0)\ndef solve(x): return 0",
        {"WrongAnswer", "Crashed"},
    ),
    ("True for 1, 1 for True", "def solve(x): return x == 1", {"WrongAnswer"}),
    ("returns nan", "def solve(x): return float('nan')", {"WrongAnswer"}),
    ("an exception with a name of ours", "raise type('<timeout>', (Exception,), {})", {"Exception"}),
    ("asserts itself", "def solve(x): assert False", {"AssertionError"}),
    ("redefines check", "def check(c): pass\ndef test(): pass\nsolve = None", {"TypeError"}),
    ("no function", "answer = 9", {"NameError"}),
]
