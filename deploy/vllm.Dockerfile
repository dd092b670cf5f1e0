# vLLM with the cache's tiers in it. Build from the repository's root:
#   docker build -f deploy/vllm.Dockerfile -t hpkv-vllm .
#   docker run --gpus all --shm-size=20g -v kv:/kv -p 8000:8000 hpkv-vllm MODEL --tiers=host=16GiB,ssd=/kv:200GiB
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE hpkv.py ./
COPY gateway gateway
COPY cache cache
COPY engine_adapters engine_adapters
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM vllm/vllm-openai:v0.32.0
COPY --from=build /wheels /wheels
# What our code needs beyond what vLLM brings; obstore is for object stores.
RUN python3 -m pip install --no-cache-dir --no-deps --break-system-packages /wheels/*.whl xxhash==4.1.0 obstore==0.12.1
ENTRYPOINT ["hpkv", "launch", "vllm"]
