# syntax=docker/dockerfile:1
# The stages that want a GPU. From the repository's root:
#   docker build --file deployments/docker/gpu.Dockerfile --tag apprentice-gpu:0.1.0 .
# The wheels bring CUDA 13 with them; of the machine they need its driver, 580 or newer, and NVIDIA's container toolkit.

# constraints.txt is the lock of this Python.
FROM python:3.11-slim

# Triton, and with it torch.compile and vLLM, compiles when it runs.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/*

# Numbered, as Kubernetes lets no other user pass for an ordinary one. Volumes take over who owns their folders.
RUN useradd --create-home --uid 1000 apprentice \
    && install --directory --owner=1000 --group=1000 /cache/huggingface /store

WORKDIR /app

# TRL 1.16 takes vLLM 0.22 to 0.31. Those from 0.27 on are built for the locked torch, and 0.31 refuses the locked
# transformers.
ARG VLLM_VERSION=0.30.0
# Two bounds around vLLM give way to the lock, for which uv is needed. Its fastapi<0.137 was for the metrics of its HTTP
# server, whose package takes newer ones since 8.0.2; Prefect needs 0.139. The numpy<2.4 of mistral-common holds for
# Python before 3.13 only.
ARG UV_VERSION=0.13.9
COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache \
    pip install "uv==${UV_VERSION}" \
    && grep --extended-regexp '^(fastapi|numpy)==' constraints.txt > /tmp/overrides.txt \
    && uv pip install --system --constraint constraints.txt --override /tmp/overrides.txt \
        torch trl "vllm==${VLLM_VERSION}"

# The repository stays in /app, where recipes and pools are found by their paths.
COPY . .
RUN --mount=type=cache,target=/root/.cache \
    uv pip install --system --constraint constraints.txt --override /tmp/overrides.txt "vllm==${VLLM_VERSION}" \
        ".[lora,qlora,liger]"

# What Prefect keeps of a task lies beside the artifacts that it names, so that any worker finds it.
ENV APPRENTICE_STORE=/store \
    DO_NOT_TRACK=1 \
    GRADIO_ANALYTICS_ENABLED=False \
    HF_HOME=/cache/huggingface \
    PREFECT_CLIENT_MAX_RETRIES=8 \
    PREFECT_LOCAL_STORAGE_PATH=/store/.prefect \
    PREFECT_SERVER_ANALYTICS_ENABLED=false \
    PYTHONUNBUFFERED=1
VOLUME ["/cache/huggingface", "/store"]
USER 1000:1000
CMD ["prefect", "worker", "start", "--pool", "a100"]
