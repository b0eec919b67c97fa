# syntax=docker/dockerfile:1
# The flow and all stages that need no GPU. From the repository's root:
#   docker build --file deployments/docker/cpu.Dockerfile --tag apprentice-cpu:0.1.0 .

# constraints.txt is locked for this Python version.
FROM python:3.11-slim

# A numeric user, as Kubernetes' runAsNonRoot requires. Volumes inherit the owner of their folders.
RUN useradd --create-home --uid 1000 apprentice \
    && install --directory --owner=1000 --group=1000 /cache/huggingface /store

WORKDIR /app

# torch separately, from PyTorch's index: its CPU build saves gigabytes of CUDA libraries.
COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt --no-deps --index-url https://download.pytorch.org/whl/cpu torch

# Keep the repository in /app: recipes and pools are read by path.
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt .

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
CMD ["prefect", "worker", "start", "--pool", "cpu"]
