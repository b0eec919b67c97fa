# The flow and all stages that need no GPU. From the repository's root:
#   docker build --file deployments/docker/cpu.Dockerfile --tag apprentice-cpu:0.1.0 .
# Mirrors: --build-arg PYTHON_IMAGE=…, --build-arg PIP_INDEX_URL=…, --build-arg TORCH_INDEX_URL=…

# constraints.txt is locked for this Python version.
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE}

# A numeric user, as Kubernetes' runAsNonRoot requires. Volumes inherit the owner of their folders.
RUN useradd --create-home --uid 1000 apprentice \
    && install --directory --owner=1000 --group=1000 /cache/huggingface /store

WORKDIR /app

ARG PIP_INDEX_URL
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
# torch separately, from PyTorch's index: its CPU build saves gigabytes of CUDA libraries. The compiler is for pycosat,
# which has no wheels. A changed source repeats only what is below.
COPY constraints.txt pyproject.toml ./
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && pip install --no-cache-dir --constraint constraints.txt uv \
    && uv pip install --system --no-cache --constraint constraints.txt --no-deps \
        --default-index "${TORCH_INDEX_URL}" torch \
    && uv pip install --system --no-cache --constraint constraints.txt --requirements pyproject.toml \
        ${PIP_INDEX_URL:+--default-index=$PIP_INDEX_URL} \
    && apt-get purge --yes --auto-remove gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# Keep the repository in /app: recipes and pools are read by path.
COPY . .
RUN uv pip install --system --no-cache --constraint constraints.txt ${PIP_INDEX_URL:+--default-index=$PIP_INDEX_URL} .

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
