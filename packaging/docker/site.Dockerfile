# A site of a federation on NVIDIA FLARE. Build it at the root of the repository, after
# `make build`:
#   docker build -f packaging/docker/site.Dockerfile -t fedbilevel-site .
# docs/operations.md, "Containers", says how to run it.
ARG BASE=python:3.11-slim

FROM ${BASE} AS packages
# Give 1 where there is no network: dist/ must then hold the wheels of all dependencies.
ARG PIP_NO_INDEX
COPY constraints.txt dist/ /dist/
RUN wheel="$(ls /dist/fedbilevel-*.whl)" \
    && python3 -m venv /opt/fedbilevel \
    && /opt/fedbilevel/bin/pip install --no-cache-dir --find-links /dist \
        --constraint /dist/constraints.txt \
        "fedbilevel[commands,nvflare] @ file://${wheel}"

FROM ${BASE}
COPY --from=packages /opt/fedbilevel /opt/fedbilevel
RUN useradd --uid 10001 --no-create-home fedbilevel
# A kit's owner (--user) may have no entry in the image's list of users.
ENV PATH=/opt/fedbilevel/bin:$PATH \
    HOME=/tmp \
    LOGNAME=fedbilevel
USER 10001
WORKDIR /kit
# Once, without the watchdog of start.sh: the container engine starts it again.
CMD ["/kit/startup/sub_start.sh", "--once"]
