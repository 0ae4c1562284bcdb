# Operator, gateway and batch worker: all of Skirret that runs without torch.
#
#   docker build --file docker/skirret.Dockerfile --tag skirret .
#
# The command is a module: skirret_operator, skirret_gateway or skirret_batch.worker.
ARG BASE=docker.io/library/python:3.11-slim

FROM ${BASE} AS runtime
# Where there is no package index: PIP_NO_INDEX=1, and PIP_FIND_LINKS names a folder of wheels.
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
WORKDIR /opt/skirret
# Slim images come without Python's own compiled modules; without them a process starts 4 times slower.
RUN python3 -m compileall -q -x '/(test|tests|lib2to3|idlelib|dist-packages|site-packages)/' \
 $(python3 -c "import sysconfig; print(sysconfig.get_path('stdlib'))")
COPY pyproject.toml ./
RUN python3 -c "import tomllib; \
project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = [project['optional-dependencies'][name] for name in ('operator', 'gateway', 'batch')]; \
print(*project['dependencies'], *sum(extras, []), sep='\n')" > /tmp/requirements.txt \
 && python3 -m pip install --no-cache-dir --target dependencies --requirement /tmp/requirements.txt \
 && rm /tmp/requirements.txt
RUN echo "skirret:x:65532:65532::/tmp:/usr/sbin/nologin" >> /etc/passwd \
 && python3 -c "import pathlib, site; \
pathlib.Path(site.getsitepackages()[0], 'skirret.pth').write_text( \
'/opt/skirret/packages\n/opt/skirret/dependencies\n')"
# The root file system is read-only in the cluster; nothing is found in the working directory.
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["python3", "-m"]
CMD ["skirret_gateway"]

FROM runtime AS install
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
USER 0:0
WORKDIR /source
RUN python3 -m pip install --no-cache-dir --target /opt/build hatchling
COPY . ./
RUN PYTHONPATH=/opt/build python3 -m pip install --no-cache-dir --no-build-isolation --no-deps \
    --target /opt/skirret/packages .

FROM runtime
COPY --from=install /opt/skirret/packages /opt/skirret/packages
