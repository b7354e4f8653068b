# Images of the agent, with Terraform (tendril) and without (tendril-slim), and of
# the control plane (trellis). "make images" builds them all.
#
# What they are made from is given by build arguments, for mirrors and for bases
# of your own. A base that has git, ssh and CA certificates is taken as it is;
# others get them by apt-get. TERRAFORM_IMAGE has the program and its licence where
# the vendor's has them. VERSION is as 1.2.3 and REVISION a whole commit.
ARG GO_IMAGE=golang:1.26-bookworm
ARG BASE_IMAGE=debian:bookworm-slim
ARG TERRAFORM_IMAGE=hashicorp/terraform:1.11.4

FROM ${TERRAFORM_IMAGE} AS terraform

FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS source
WORKDIR /src
COPY . .
ENV CGO_ENABLED=0 GOMODCACHE=/go/pkg/mod GOCACHE=/root/.cache/go-build

# What those ask for whose work is linked in.
FROM source AS licenses
ARG TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    go run -trimpath ./scripts/licenses -platforms "linux/$TARGETARCH" -write /THIRD-PARTY-LICENSES.txt

# Compiles on the machine's own platform, for that of the image.
FROM source AS build
ARG TARGETOS
ARG TARGETARCH
ARG VERSION
ARG REVISION
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath \
      -ldflags "-s -w -buildid= -X github.com/tendril-run/tendril/internal/version.version=$VERSION -X github.com/tendril-run/tendril/internal/version.commit=$REVISION" \
      -o /out/ ./cmd/tendril ./cmd/tendril-dispatcher ./cmd/trellis

# What the programs consist of: for the release's, the same bytes as its own.
FROM build AS bills
ARG VERSION
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    go run -trimpath ./scripts/licenses -sbom "$VERSION" /out/tendril /out/tendril-dispatcher /out/trellis

# What templates need beside the agent: Terraform fetches modules by git and ssh.
# Both ask for the user's name, so the number has one. Nothing here may gain
# rights by being executed.
FROM ${BASE_IMAGE} AS tools
USER 0:0
RUN set -eu; \
    if ! { command -v git && command -v ssh && [ -s /etc/ssl/certs/ca-certificates.crt ]; } >/dev/null; then \
      command -v apt-get >/dev/null || { echo "BASE_IMAGE needs git, ssh and /etc/ssl/certs/ca-certificates.crt, or apt-get to install them with" >&2; exit 1; }; \
      apt-get update; \
      DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates git openssh-client; \
      rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt /var/log/*.log; \
    fi; \
    echo 'tendril:x:10001:10001:Tendril:/var/lib/tendril/home:/usr/sbin/nologin' >>/etc/passwd; \
    echo 'tendril:x:10001:' >>/etc/group; \
    mkdir -p /var/lib/tendril/home; \
    chown -R 10001:10001 /var/lib/tendril; \
    chmod 0700 /var/lib/tendril /var/lib/tendril/home; \
    find / -xdev -type f -perm /6000 -exec chmod ug-s {} +

FROM tools AS tendril-slim
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="tendril, without an engine" \
      org.opencontainers.image.description="Tendril's agent: claims provisions from Postgres and runs Terraform for them" \
      org.opencontainers.image.source="https://github.com/tendril-run/tendril" \
      org.opencontainers.image.documentation="https://github.com/tendril-run/tendril#images" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY LICENSE /usr/share/doc/tendril/LICENSE
COPY --from=licenses /THIRD-PARTY-LICENSES.txt /usr/share/doc/tendril/
COPY --from=bills /out/tendril.cdx.json /out/tendril-dispatcher.cdx.json /usr/share/doc/tendril/
COPY --from=build /out/tendril /out/tendril-dispatcher /usr/local/bin/
ENV TENDRIL_DATA_DIR=/var/lib/tendril HOME=/var/lib/tendril/home
WORKDIR /
USER 10001:10001
ENTRYPOINT ["/usr/local/bin/tendril"]
CMD ["run"]

FROM tendril-slim AS tendril
LABEL org.opencontainers.image.title="tendril" \
      org.opencontainers.image.licenses="Apache-2.0 AND BUSL-1.1"
COPY --from=terraform /bin/terraform /usr/local/bin/terraform
# Its licence asks to be with every copy, and so it lies in the vendor's image.
COPY --from=terraform /usr/share/doc/terraform/LICENSE.txt /usr/share/doc/terraform/LICENSE.txt

# The files of the control plane's image, which has no operating system.
FROM tools AS rootfs
RUN set -eu; \
    mkdir -p /rootfs/etc/ssl/certs /rootfs/usr/local/bin /rootfs/tmp; \
    chmod 1777 /rootfs/tmp; \
    cp -L /etc/ssl/certs/ca-certificates.crt /rootfs/etc/ssl/certs/; \
    echo 'trellis:x:10001:10001:Trellis:/tmp:/sbin/nologin' >/rootfs/etc/passwd; \
    echo 'trellis:x:10001:' >/rootfs/etc/group

FROM scratch AS trellis
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="trellis" \
      org.opencontainers.image.description="Tendril's control plane: console, REST API, migrations and the agents' gateway" \
      org.opencontainers.image.source="https://github.com/tendril-run/tendril" \
      org.opencontainers.image.documentation="https://github.com/tendril-run/tendril#images" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=rootfs /rootfs/ /
COPY LICENSE /usr/share/doc/trellis/LICENSE
COPY --from=licenses /THIRD-PARTY-LICENSES.txt /usr/share/doc/trellis/
COPY --from=bills /out/trellis.cdx.json /usr/share/doc/trellis/
COPY --from=build /out/trellis /usr/local/bin/trellis
ENV PATH=/usr/local/bin HOME=/tmp TRELLIS_LISTEN=:8080
EXPOSE 8080
USER 10001:10001
ENTRYPOINT ["/usr/local/bin/trellis"]
CMD ["serve"]
