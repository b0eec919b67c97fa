# syntax=docker/dockerfile:1
# The stages that need a GPU. From the repository's root:
#   docker build --file deployments/docker/gpu.Dockerfile --tag apprentice-gpu:0.1.0 .
# The wheels contain CUDA 13; the machine needs driver 580 or newer and NVIDIA's container toolkit.

# constraints.txt is locked for this Python version.
FROM python:3.11-slim

# Triton, used by torch.compile and vLLM, compiles at run time.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/*

# A numeric user, as Kubernetes' runAsNonRoot requires. Volumes inherit the owner of their folders.
RUN useradd --create-home --uid 1000 apprentice \
    && install --directory --owner=1000 --group=1000 /cache/huggingface /store

WORKDIR /app

# TRL 1.16 supports vLLM 0.22 to 0.31. Versions from 0.27 are built for the locked torch; 0.31 rejects the locked
# transformers.
ARG VLLM_VERSION=0.30.0
# The lock overrides two version bounds of vLLM, which needs uv. Its fastapi<0.137 was for the metrics package of its HTTP
# server, which accepts newer versions since 8.0.2; Prefect needs 0.139. The numpy<2.4 of mistral-common applies only to
# Python before 3.13.
ARG UV_VERSION=0.13.9
COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache \
    pip install "uv==${UV_VERSION}" \
    && grep --extended-regexp '^(fastapi|numpy)==' constraints.txt > /tmp/overrides.txt \
    && uv pip install --system --constraint constraints.txt --override /tmp/overrides.txt \
        torch trl "vllm==${VLLM_VERSION}"

# Keep the repository in /app: recipes and pools are read by path.
COPY . .
RUN --mount=type=cache,target=/root/.cache \
    uv pip install --system --constraint constraints.txt --override /tmp/overrides.txt "vllm==${VLLM_VERSION}" \
        ".[lora,qlora,liger]"

# Prefect's cached results are stored next to the artifacts, so that every worker finds them.
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
