# syntax=docker/dockerfile:1
# The flow itself and everything that needs no GPU. From the repository's root:
#   docker build --file deployments/docker/cpu.Dockerfile --tag apprentice-cpu:0.1.0 .

# constraints.txt is the lock of this Python.
FROM python:3.11-slim

# Numbered, as Kubernetes lets no other user pass for an ordinary one. Volumes take over who owns their folders.
RUN useradd --create-home --uid 1000 apprentice \
    && install --directory --owner=1000 --group=1000 /cache/huggingface /store

WORKDIR /app

# torch alone, from PyTorch's own index: its CPU build saves some gigabytes of CUDA libraries.
COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt --no-deps --index-url https://download.pytorch.org/whl/cpu torch

# The repository stays in /app, where recipes and pools are found by their paths.
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt .

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
CMD ["prefect", "worker", "start", "--pool", "cpu"]
