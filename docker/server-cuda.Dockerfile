# The inference server for NVIDIA GPUs.
#
#   docker build --file docker/server-cuda.Dockerfile --tag skirret-server-cuda .
#
# Not built by the tests, which have neither a GPU nor its base: they resolve what it installs and
# compare its CUDA with torch's. FlashInfer compiles the kernels that a model needs at its first
# start, for minutes, with this image's nvcc, and keeps them in /cache: give models a cache claim.
ARG BASE=docker.io/nvidia/cuda:13.2.1-devel-ubuntu24.04

FROM ${BASE} AS runtime
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-dev python3-pip g++ \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/skirret
COPY pyproject.toml ./
RUN python3 -c "import tomllib; \
project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = project['optional-dependencies']; \
print(*project['dependencies'], *extras['server'], *extras['cuda'], sep='\n')" \
 > /tmp/requirements.txt \
 && python3 -m pip install --no-cache-dir --target dependencies --requirement /tmp/requirements.txt \
 && rm /tmp/requirements.txt
RUN echo "skirret:x:65532:65532::/tmp:/usr/sbin/nologin" >> /etc/passwd \
 && python3 -c "import pathlib, site; \
pathlib.Path(site.getsitepackages()[0], 'skirret.pth').write_text( \
'/opt/skirret/packages\n/opt/skirret/dependencies\n')"
# The root file system is read-only in the cluster; nothing is found in the working directory.
# FlashInfer finds ninja on the path.
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 \
    PATH=/opt/skirret/dependencies/bin:${PATH} CUDA_HOME=/usr/local/cuda
USER 65532:65532
ENTRYPOINT ["python3", "-m", "skirret_server"]
CMD ["--help"]

FROM runtime AS install
USER 0:0
WORKDIR /source
RUN python3 -m pip install --no-cache-dir --target /opt/build hatchling
COPY . ./
RUN PYTHONPATH=/opt/build python3 -m pip install --no-cache-dir --no-build-isolation --no-deps \
    --target /opt/skirret/packages .

FROM runtime
COPY --from=install /opt/skirret/packages /opt/skirret/packages
