# The process that holds a pod's namespaces open, from e2e/kubernetes/pause.
FROM scratch
COPY pause /pause
USER 65535:65535
ENTRYPOINT ["/pause"]
