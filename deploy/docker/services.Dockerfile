# scheduler, runner, proxy, evaluator, trajectory: one image, without torch.
#   docker build -f deploy/docker/services.Dockerfile --target services .
#   docker build -f deploy/docker/services.Dockerfile --target runner .
# PIP_ARGS: extra arguments of pip, for a mirror of one's own.

FROM python:3.11.14-slim-bookworm AS build
ARG PIP_ARGS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY requirements requirements
COPY libs libs
COPY services services
RUN python -m venv /opt/gyre \
 && /opt/gyre/bin/pip install ${PIP_ARGS} -c requirements/constraints.txt \
      ./libs/contracts ./libs/core ./libs/adapters ./libs/embedded \
      ./services/scheduler ./services/runner ./services/proxy ./services/evaluator \
      ./services/trajectory

FROM build AS harness
RUN python -m venv /opt/harness-llm \
 && /opt/harness-llm/bin/pip install ${PIP_ARGS} -r requirements/harness-llm.txt

FROM python:3.11.14-slim-bookworm AS services
RUN groupadd --system --gid 10001 gyre \
 && useradd --system --uid 10001 --gid gyre --no-create-home --shell /usr/sbin/nologin gyre \
 && install -d -o gyre -g gyre -m 0750 /var/lib/gyre
COPY --from=build /opt/gyre /opt/gyre
ENV PATH=/opt/gyre/bin:$PATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 GYRE_HOME=/var/lib/gyre
WORKDIR /var/lib/gyre
USER gyre

FROM services AS runner
COPY --from=harness /opt/harness-llm /opt/harness-llm
COPY deploy/docker/harness-envs.json /opt/gyre/harness-envs.json
ENV GYRE_HARNESS_ENVS=/opt/gyre/harness-envs.json
