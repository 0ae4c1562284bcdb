# The inference server with torch for CPUs.
#
#   docker build --file docker/server.Dockerfile --tag skirret-server .
#
# Not built by the tests: on the local Kubernetes torch comes from a read-only volume instead, since
# an image of it takes minutes and 27 GB of disk to make and import.
ARG BASE=docker.io/library/python:3.11-slim

FROM ${BASE} AS runtime
# The index of torch's builds without CUDA, which are far smaller.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
WORKDIR /opt/skirret
# Slim images come without Python's own compiled modules; without them a process starts 4 times slower.
RUN python3 -m compileall -q -x '/(test|tests|lib2to3|idlelib|dist-packages|site-packages)/' \
 $(python3 -c "import sysconfig; print(sysconfig.get_path('stdlib'))")
COPY pyproject.toml ./
RUN python3 -c "import tomllib; \
project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*project['dependencies'], *project['optional-dependencies']['server'], sep='\n')" \
 > /tmp/requirements.txt \
 && python3 -m pip install --no-cache-dir --target dependencies --requirement /tmp/requirements.txt \
 && rm /tmp/requirements.txt
RUN echo "skirret:x:65532:65532::/tmp:/usr/sbin/nologin" >> /etc/passwd \
 && python3 -c "import pathlib, site; \
pathlib.Path(site.getsitepackages()[0], 'skirret.pth').write_text( \
'/opt/skirret/packages\n/opt/skirret/dependencies\n')"
# The root file system is read-only in the cluster; nothing is found in the working directory.
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
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
