# Both stages use one image: a virtual environment only works with the interpreter that made it.
FROM python:3.13-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/kai-binder
# The dependencies first: they change less often than the code. Each file must have the hash that the lock names.
COPY requirements.lock ./
RUN /opt/kai-binder/bin/python -m pip install --no-cache-dir --only-binary :all: --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md ./
COPY controller controller/
RUN /opt/kai-binder/bin/python -m pip install --no-cache-dir --no-deps .
# Nothing installs packages in the running container.
RUN /opt/kai-binder/bin/python -m pip uninstall --yes pip

FROM python:3.13-slim-bookworm
COPY --from=build /opt/kai-binder /opt/kai-binder
ENV PATH=/opt/kai-binder/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10000:10000
# metrics and health
EXPOSE 8080 8081
ENTRYPOINT ["kai-binder"]
