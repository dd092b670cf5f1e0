# The gateway, without engine and torch. Build from the repository's root:
#   docker build -f deploy/gateway.Dockerfile -t hpkv-gateway .
FROM python:3.11-slim AS build
RUN python -m venv /opt/hpkv
WORKDIR /src
COPY deploy/requirements/gateway.txt ./
RUN /opt/hpkv/bin/pip install --no-cache-dir --require-hashes --no-deps -r gateway.txt
COPY pyproject.toml README.md LICENSE hpkv.py ./
COPY gateway gateway
COPY cache cache
COPY engine_adapters engine_adapters
RUN /opt/hpkv/bin/pip install --no-cache-dir --no-deps .

FROM python:3.11-slim
RUN useradd --system --create-home --uid 10001 hpkv
COPY --from=build /opt/hpkv /opt/hpkv
USER hpkv
EXPOSE 8000
# Beyond loopback the gateway wants API keys: mount a file and name it in HPKV_ACCESS__API_KEYS_FILE.
ENV HPKV_LISTEN__HOST=0.0.0.0
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["/opt/hpkv/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/livez', timeout=2)"]
ENTRYPOINT ["/opt/hpkv/bin/hpkv"]
CMD ["serve", "--config", "/etc/hpkv/hpkv.yaml"]
