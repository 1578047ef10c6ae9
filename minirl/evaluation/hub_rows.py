"""Hub data sets whose rows need more than other names to become ours."""

import base64
import io
import json
import pickle
import zlib
from typing import Any

from minirl.utils.errors import ConfigError


def livecodebench(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of livecodebench/code_generation_lite: public and private tests together; the starter code behind the question."""
    made = []
    for row in rows:
        tests = json.loads(row["public_test_cases"]) + private_tests(row["private_test_cases"])
        starter = row.get("starter_code") or ""
        prompt = row["question_content"] + (f"\n\nUse this starter code:\n```python\n{starter}\n```" if starter else STDIN)
        function = json.loads(row.get("metadata") or "{}").get("func_name")
        made.append({"id": row["question_id"], "problem": prompt, "tests": tests, "entry_point": function})
    return made


STDIN = "\n\nThe program reads standard input and writes standard output."


def private_tests(text: str) -> list[dict[str, Any]]:
    """Tests as JSON, or as JSON pickled, compressed and in base64. Only plain values are unpickled."""
    if text.lstrip().startswith("["):
        return json.loads(text)

    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise ConfigError(f"the tests of a LiveCodeBench row hold a {module}.{name}, not plain text: refused")

    try:
        content = Plain(io.BytesIO(zlib.decompress(base64.b64decode(text)))).load()
    except (zlib.error, pickle.UnpicklingError) as error:
        raise ValueError(f"tests that are not in the data set's packing: {error}") from error
    return json.loads(content) if isinstance(content, str | bytes) else content


def codeforces(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of open-r1/codeforces whose official tests are complete and have one right output: standard input, no checker."""
    made = []
    for row in rows:
        if row.get("input_mode") != "stdio" or not row.get("official_tests_complete") or row.get("generated_checker"):
            continue
        parts = [row["description"], "Input\n" + (row.get("input_format") or ""), "Output\n" + (row.get("output_format") or "")]
        parts += [f"Example input\n{e['input']}\nExample output\n{e['output']}" for e in row.get("examples") or []]
        tests = row["official_tests"]
        inputs, outputs = [t["input"] for t in tests], [t["output"] for t in tests]
        made.append(
            {"id": row["id"], "problem": "\n\n".join(parts) + STDIN, "timeout": row.get("time_limit"),
             "tests": {"type": "stdin_stdout", "inputs": inputs, "outputs": outputs}}
        )  # fmt: skip
    return made


PREPARE = {"livecodebench": livecodebench, "codeforces": codeforces}
