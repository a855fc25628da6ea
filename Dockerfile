# Both stages use one image: a virtual environment only works with the interpreter that made it.
FROM python:3.13-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/kai-binder
# The dependencies first: they change less often than the code. Each file must have the hash that the lock names.
COPY requirements.lock ./
RUN /opt/kai-binder/bin/python -m pip install --no-cache-dir --no-compile --only-binary :all: --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY controller controller/
RUN /opt/kai-binder/bin/python -m pip install --no-cache-dir --no-compile --no-deps .
# What all this is, for whoever has to know (CycloneDX).
COPY sbom.cdx.json /opt/kai-binder/share/doc/kai-binder/
# Nothing installs packages in the running container.
RUN /opt/kai-binder/bin/python -m pip uninstall --yes pip
# Bytecode, without which each start would compile what it imports (0.5 s of CPU), since nothing is written in the
# running container. The standard library's too: the base image leaves it out. Where to is said by the environment, since
# the processes that compile do not get an option -X from the one that starts them (seen with Python 3.13).
RUN env PYTHONPYCACHEPREFIX=/opt/kai-binder/bytecode /opt/kai-binder/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash -x '/usr/local/lib/python3.13/(site-packages|test|lib2to3|idlelib|ensurepip|tkinter|turtledemo)/' /usr/local/lib/python3.13 /opt/kai-binder/lib

# One image for the binder, the webhook and the agent in reservation pods; the arguments say which.
FROM python:3.13-slim-bookworm
COPY --from=build /opt/kai-binder /opt/kai-binder
# pydantic would look into every installed package for plugins of its own.
# Where NVIDIA's runtime starts containers: the agent needs the management library (utility), and nothing else of the
# driver. Which GPUs a container gets is left to the device plugin, whose value wins over this one: void is no GPU, and no
# driver, for the binder and the webhook, whatever the base image says.
ENV PATH=/opt/kai-binder/bin:$PATH \
    NVIDIA_DRIVER_CAPABILITIES=utility \
    NVIDIA_VISIBLE_DEVICES=void \
    PYDANTIC_DISABLE_PLUGINS=__all__ \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPYCACHEPREFIX=/opt/kai-binder/bytecode \
    PYTHONUNBUFFERED=1
USER 10000:10000
# metrics, health, and the webhook
EXPOSE 8080 8081 9443
ENTRYPOINT ["kai-binder"]
