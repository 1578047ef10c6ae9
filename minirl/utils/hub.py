"""Whether the Hugging Face Hub can be reached: asked once, because its clients try for half a minute at every file."""

import os

UNREACHABLE = ("ConnectError", "ConnectTimeout", "ProxyError")  # of httpx, or of the library that follows it


def hub_is_offline() -> bool:
    """Whether the Hub is not to be asked: by HF_HUB_OFFLINE, or since nothing answers. What is in the cache is used then."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if not constants.HF_HUB_OFFLINE:
        try:
            get_session().head(constants.ENDPOINT, timeout=5.0)
        except Exception as error:  # noqa: BLE001 - anything but these its clients will meet and report
            if type(error).__name__ in UNREACHABLE:
                constants.HF_HUB_OFFLINE = True
                os.environ["HF_HUB_OFFLINE"] = "1"  # for libraries that are imported later, and for child processes
    return bool(constants.HF_HUB_OFFLINE)
