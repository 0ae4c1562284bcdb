# The local Kubernetes' stand-in for python:3.11-slim: Debian's own Python, unpacked from its
# packages (base.packages) into the build's folder by e2e/skirret_local. No registry is asked.
FROM scratch
COPY . /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
CMD ["python3"]
