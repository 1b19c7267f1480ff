# CosyStream on a CPU. Build and run:
#   docker build -t cosystream .
#   docker run --rm -p 127.0.0.1:8765:8765 cosystream --insecure
# The server refuses a public address without keys, which every address in a container is: give it a key file (see
# docs/operations.md), or, where only trusted clients reach the port, --insecure. It runs with --read-only.
#
# The Chinese voice is for non-commercial use only (see NOTICE). Accept that to have it in the image:
#   docker build --build-arg ACCEPT_BAKER_NONCOMMERCIAL=yes -t cosystream .
#
# CosyVoice (see docs/cosyvoice.md), on a CPU; a gigabyte more. Its model is fetched at the first start, into a volume:
#   docker build --build-arg COSYVOICE=yes -t cosystream-cosyvoice .
#   docker run --rm -p 127.0.0.1:8765:8765 -v cosystream:/var/lib/cosystream cosystream-cosyvoice --insecure \
#     --engine cosyvoice --engine-option model_dir=/var/lib/cosystream/models
ARG PYTHON_VERSION=3.12
ARG COSYVOICE=no
ARG ACCEPT_BAKER_NONCOMMERCIAL=no

FROM python:${PYTHON_VERSION}-slim AS builder
WORKDIR /opt/build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PIP_QUIET=1
RUN python -m venv /opt/cosystream
# The dependencies first: they change more rarely than the code. Without PyAV, since Debian has the one library taken from it.
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; print(*(d for d in tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'] if not d.startswith('av>')), sep='\n')" > requirements.txt \
 && /opt/cosystream/bin/pip install --constraint constraints.txt pip setuptools \
 && /opt/cosystream/bin/pip install --no-build-isolation --constraint constraints.txt --requirement requirements.txt
COPY README.md LICENSE NOTICE ./
COPY protocol protocol
COPY server server
COPY client client
COPY demo_web demo_web
RUN /opt/cosystream/bin/pip install --no-build-isolation --no-deps .

# Whether the image has what the engine `cosyvoice` needs.
FROM builder AS cosyvoice-no
FROM builder AS cosyvoice-yes
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['cosyvoice'], sep='\n')" > cosyvoice.txt \
 && /opt/cosystream/bin/pip install --constraint constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu --requirement cosyvoice.txt
FROM cosyvoice-${COSYVOICE} AS equipped

# Which voices the image has. The server offers those that are there; without the converter it cannot build others.
FROM equipped AS voices-no
RUN COSYSTREAM_MODEL_DIR=/opt/voices /opt/cosystream/bin/python -m server.engines.embedded build --voices en-hibari
FROM equipped AS voices-yes
RUN COSYSTREAM_MODEL_DIR=/opt/voices /opt/cosystream/bin/python -m server.engines.embedded build --voices en-hibari,zh-baker

FROM voices-${ACCEPT_BAKER_NONCOMMERCIAL} AS finished
# What only the building needed.
RUN /opt/cosystream/bin/pip uninstall --yes onnx tflite ml-dtypes setuptools pip

FROM python:${PYTHON_VERSION}-slim
RUN apt-get update \
 && apt-get install --yes --no-install-recommends libopus0 \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o 10001 -g 10001 -m 0700 /var/lib/cosystream
COPY --from=finished /opt/cosystream /opt/cosystream
COPY --from=finished /opt/voices /opt/voices
COPY LICENSE NOTICE /usr/share/doc/cosystream/
ENV PATH=/opt/cosystream/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
ENV COSYSTREAM_MODEL_DIR=/opt/voices COSYSTREAM_HOST=0.0.0.0 COSYSTREAM_PORT=8765
# The one place to write to, for a volume: `-v sessions:/var/lib/cosystream` and COSYSTREAM_STORE=file:/var/lib/cosystream/sessions.
# Texts that the engine fails at go to /var/lib/cosystream/dead-letters, where that can be written.
ENV XDG_STATE_HOME=/var/lib
USER 10001:10001
WORKDIR /tmp
EXPOSE 8765
STOPSIGNAL SIGTERM
# The port and TLS are looked up where the server finds them, but for the command line, which a health check cannot see: set
# them by COSYSTREAM_PORT and COSYSTREAM_TLS_CERT or in the file COSYSTREAM_CONFIG, not as arguments of `docker run`.
HEALTHCHECK --interval=15s --timeout=3s --start-period=30s --retries=3 \
    CMD ["cosystream-server", "health"]
ENTRYPOINT ["cosystream-server"]
