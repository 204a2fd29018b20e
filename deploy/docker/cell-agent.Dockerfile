# cell-agent, and the rendezvous store of the trainers: the image with torch and Megatron-Core.
#   docker build -f deploy/docker/cell-agent.Dockerfile .
# PIP_ARGS: extra arguments of pip. The registry's torch brings CUDA; for an image without it name an
# index of CPU builds here (--extra-index-url).

FROM python:3.11.14-slim-bookworm AS build
ARG PIP_ARGS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY requirements requirements
COPY libs libs
COPY services services
RUN python -m venv /opt/gyre \
 && /opt/gyre/bin/pip install ${PIP_ARGS} -c requirements/constraints.txt \
      ./libs/contracts ./libs/core ./libs/adapters ./libs/objective ./services/cell-agent

FROM python:3.11.14-slim-bookworm AS cell-agent
RUN groupadd --system --gid 10001 gyre \
 && useradd --system --uid 10001 --gid gyre --no-create-home --shell /usr/sbin/nologin gyre \
 && install -d -o gyre -g gyre -m 0750 /var/lib/gyre
COPY --from=build /opt/gyre /opt/gyre
ENV PATH=/opt/gyre/bin:$PATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 GYRE_HOME=/var/lib/gyre
WORKDIR /var/lib/gyre
USER gyre
