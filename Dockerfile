# minirl on a node with NVIDIA GPUs (made for 8 x H200), every version from uv.lock:
#   docker build -t minirl . && docker run --gpus all --ipc=host -v $PWD/runs:/minirl/runs minirl \
#     accelerate launch --config_file configs/accelerate/zero3.yaml train.py configs/qwen3-8b-math.yaml --run-dir runs/first
# devel: DeepSpeed and Triton compile kernels at run time. Python 3.11: what the tests run on.
# CUDA 13.0, for which the locked torch is built (driver 580 or newer).
FROM nvidia/cuda:13.0.1-devel-ubuntu22.04
COPY --from=ghcr.io/astral-sh/uv:0.13.9 /uv /bin/uv
RUN apt-get update && apt-get install -y --no-install-recommends git g++ ninja-build && rm -rf /var/lib/apt/lists/*
WORKDIR /minirl
ENV UV_LINK_MODE=copy UV_PYTHON=3.11 PATH=/minirl/.venv/bin:$PATH OMP_WAIT_POLICY=passive
# Dependencies first, so that a change of the code does not install them again.
COPY pyproject.toml uv.lock README.md ./
RUN uv sync --frozen --extra gpu --extra lora --no-install-project
COPY . .
RUN uv sync --frozen --extra gpu --extra lora && python -c "import minirl, vllm, deepspeed, peft"
CMD ["python", "train.py", "--help"]
