# An image of the server with vLLM for Ascend, of the directory that holds this repository; BASE is
# the image of vllm-ascend (or of vllm-mindspore) for your device.  Not verified on hardware.
#
#   docker build -f deploy/ascend.Dockerfile --build-arg BASE="$VLLM_ASCEND_IMAGE" \
#     -t mindspore-serving:ascend .
ARG BASE
FROM ${BASE}
LABEL org.opencontainers.image.title="MindSpore Serving with vLLM for Ascend" \
      org.opencontainers.image.licenses="Apache-2.0"
USER root
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY mindspore_serving mindspore_serving
# Workers run in the Python that has vLLM, the server in an environment of its own.
RUN ln -s "$(command -v python3)" /usr/local/bin/vllm-python \
 && vllm-python -m venv /opt/serving \
 && /opt/serving/bin/pip install --no-cache-dir -c constraints.txt . \
 && groupadd --gid 10001 serving \
 && useradd --uid 10001 --gid 10001 --no-log-init --home-dir /var/lib/serving --create-home serving \
 && mkdir -p /models
ENV PATH=/opt/serving/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/serving
# It may use devices as a member of the group that owns /dev/davinci0: --group-add.
USER 10001:10001
EXPOSE 1500 5500
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:1500/livez', timeout=4)"]
# Images set the environment of CANN and NNAL for login shells only.
ENTRYPOINT ["/bin/bash", "-c", ". /usr/local/Ascend/ascend-toolkit/set_env.sh; . /usr/local/Ascend/nnal/atb/set_env.sh; exec mindspore-serving \"$@\"", "mindspore-serving"]
CMD ["serve", "/models", "--host=0.0.0.0", "--engine=vllm", "--python=/usr/local/bin/vllm-python"]
