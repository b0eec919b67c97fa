# The stages that need a GPU. From the repository's root:
#   docker build --file deployments/docker/gpu.Dockerfile --tag apprentice-gpu:0.1.0 .
# Mirrors: --build-arg PYTHON_IMAGE=…, --build-arg PIP_INDEX_URL=…
# The wheels contain CUDA 13; the machine needs driver 580 or newer and NVIDIA's container toolkit.

# constraints.txt is locked for this Python version.
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE}

# Triton, used by torch.compile and vLLM, compiles at run time.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/*

# A numeric user, as Kubernetes' runAsNonRoot requires. Volumes inherit the owner of their folders.
RUN useradd --create-home --uid 1000 apprentice \
    && install --directory --owner=1000 --group=1000 /cache/huggingface /store

WORKDIR /app

ARG PIP_INDEX_URL
# TRL 1.16 supports vLLM 0.22 to 0.31. Versions from 0.27 are built for the locked torch; 0.31 rejects the locked
# transformers.
ARG VLLM_VERSION=0.30.0
# The lock overrides two version bounds of vLLM, which needs uv. Its fastapi<0.137 was for the metrics package of its HTTP
# server, which accepts newer versions since 8.0.2; Prefect needs 0.139. The numpy<2.4 of mistral-common applies only to
# Python before 3.13. A changed source repeats only what is below.
COPY constraints.txt pyproject.toml ./
RUN pip install --no-cache-dir --constraint constraints.txt uv \
    && grep --extended-regexp '^(fastapi|numpy)==' constraints.txt > /tmp/overrides.txt \
    && uv pip install --system --no-cache --constraint constraints.txt --override /tmp/overrides.txt \
        ${PIP_INDEX_URL:+--default-index=$PIP_INDEX_URL} \
        "vllm==${VLLM_VERSION}" --requirements pyproject.toml --extra lora --extra qlora --extra liger

# Keep the repository in /app: recipes and pools are read by path.
COPY . .
RUN uv pip install --system --no-cache --constraint constraints.txt --override /tmp/overrides.txt \
        ${PIP_INDEX_URL:+--default-index=$PIP_INDEX_URL} \
        "vllm==${VLLM_VERSION}" ".[lora,qlora,liger]"

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
