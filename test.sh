#!/usr/bin/env bash
# Runs every check there is. Installs what is missing, asks for nothing, and stops whatever it started.
#
#   ./test.sh           everything CI runs
#   ./test.sh --long    the slow suites in their long form too (more samples per property)
set -euo pipefail
cd "$(dirname "$0")"

case "${1:-}" in
  "") ;;
  --long) export PROPTEST_CASES="${PROPTEST_CASES:-20000}" ;;
  *) echo "usage: ./test.sh [--long]" >&2; exit 2 ;;
esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

step() { printf '\n== %s\n' "$*"; }

# A machine may have Rust without the two components that the checks need.
need_component() {
  cargo "$1" --version >/dev/null 2>&1 && return
  rustup component add "$2" || { echo "cargo $1 is missing: install the rustup component $2" >&2; exit 1; }
}
need_component fmt rustfmt
need_component clippy clippy

step "format"
cargo fmt --all --check

step "lint"
cargo clippy --workspace --all-targets --locked --quiet -- -D warnings

step "documentation builds without warnings"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet

step "tests"
# Tests that see a reply assert its code and note it here.
export CANTRIP_PROVOKED="$scratch/provoked"
: >"$CANTRIP_PROVOKED"
cargo test --workspace --no-fail-fast

step "every reply code is provoked by a test, or stands in the list of those whose time has not come"
cargo run --quiet --package cantrip-reply --features testing --example code_coverage -- \
  "$CANTRIP_PROVOKED" crates/reply/codes-not-yet-provoked.txt

step "benches run"
cargo run --quiet --release --package cantrip-bench -- stream

step "all green"
