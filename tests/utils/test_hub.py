import http.server
import os
import socket
import threading
import time

import pytest
from huggingface_hub import constants

from minirl.utils.hub import hub_is_offline


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_where_nothing_answers_the_hub_is_offline_at_once_and_for_child_processes(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
    start = time.monotonic()
    assert hub_is_offline()
    assert time.monotonic() - start < 5
    assert constants.HF_HUB_OFFLINE
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_an_answer_of_any_kind_is_the_hubs_clients_to_judge(monkeypatch):
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:  # 501 to every request
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.handle_request).start()
        assert not hub_is_offline()
    assert os.environ["HF_HUB_OFFLINE"] == "0"
