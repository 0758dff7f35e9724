# Untested: the machines of this project run no Docker daemon. A static program in an empty image.
#
#   docker build -t terrane .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/store:/store" terrane inspect /store
FROM rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev musl-tools \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN rustup target add x86_64-unknown-linux-musl \
    && cargo build --profile dist --locked --package terrane-cli --target x86_64-unknown-linux-musl

FROM scratch
COPY --from=build /src/target/x86_64-unknown-linux-musl/dist/terrane /terrane
# io_uring is refused by Docker's default profile of system calls; Terrane reads by `pread` then.
ENTRYPOINT ["/terrane"]
