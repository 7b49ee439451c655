# syntax=docker/dockerfile:1
# One image for the API and for workers: `docker run IMAGE serve`, `docker run IMAGE worker`. CUDA comes with torch's own
# wheels, so the base is plain Python; a GPU needs nothing but the NVIDIA Container Toolkit on the host.
# deploy/install_test.py runs these lines, the health check and the entry point without Docker.
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PYTHON_DOWNLOADS=never
WORKDIR /src
COPY constraints.txt pyproject.toml ./
RUN pip install --no-cache-dir --constraint constraints.txt uv
# Gigabytes that change rarely come before our own code, which changes often.
RUN --mount=type=cache,target=/root/.cache/uv \
    uv venv /opt/tcnn \
    && uv pip install --python /opt/tcnn --constraint constraints.txt --requirement pyproject.toml --extra serve --extra s3 --extra ray
COPY LICENSE README.md ./
COPY tcnn tcnn
COPY tcnn_jobs tcnn_jobs
COPY tcnn_api tcnn_api
RUN --mount=type=cache,target=/root/.cache/uv \
    uv build --wheel --build-constraints constraints.txt --out-dir /dist \
    && uv pip install --python /opt/tcnn --no-deps /dist/*.whl

FROM python:${PYTHON_VERSION}-slim
# Process 1 must collect what the processes of a killed job leave behind: tini does. A job that says `compile` compiles
# C++. Versions that were pinned here would disappear from Debian's mirrors with the next ones.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ tini \
    && rm -rf /var/lib/apt/lists/*
# The number is fixed, so that a volume keeps its owner from image to image.
RUN groupadd --gid 10001 tcnn \
    && useradd --uid 10001 --gid tcnn --home-dir /data --no-create-home --shell /usr/sbin/nologin tcnn \
    && install --directory --owner tcnn --group tcnn --mode 0700 /data
COPY --from=build /opt/tcnn /opt/tcnn
# PYTHONSAFEPATH: a folder called tcnn in the working directory is not our package.
ENV PATH=/opt/tcnn/bin:$PATH \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    TCNN_HOME=/data \
    TCNN_HOST=0.0.0.0 \
    TCNN_PORT=8000 \
    HF_HOME=/data/huggingface \
    XDG_CACHE_HOME=/data/cache \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
# The image has no curl, and urllib would ask a proxy.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['TCNN_PORT']), timeout=4); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["tini", "--", "tcnn"]
CMD ["serve"]
