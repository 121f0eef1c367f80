# A CPU image:   docker build -t grouprl .
# A CUDA image:  docker build -t grouprl --build-arg BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04 \
#                  --build-arg TORCH_INDEX=https://pypi.org/simple .
# The demo:      docker run --rm -v "$PWD/runs:/train/runs" grouprl train demo
# The lab:       docker run --rm --network host -v "$PWD/runs:/train/runs" grouprl lab --no-browser --port 8000
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# gcc compiles the CPU kernels at their first use; bubblewrap confines programs that a model writes.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev bubblewrap git python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY src /src/src
RUN python3 -m venv /opt/grouprl \
    && PIP_EXTRA_INDEX_URL=${TORCH_INDEX} /opt/grouprl/bin/pip install --no-cache-dir -c /src/constraints.txt '/src[data,gguf,lora,math,ray]'

ENV PATH=/opt/grouprl/bin:$PATH
WORKDIR /train
RUN useradd --create-home grouprl && mkdir -p /train/runs && chown -R grouprl /train
USER grouprl
ENTRYPOINT ["grouprl"]
