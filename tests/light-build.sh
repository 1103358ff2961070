#!/usr/bin/env bash
# Checks that a build without Python, the editor protocol and OTLP says what is missing: by a code, an exit status and a
# sentence. Every other test runs the full build.
#
#   tests/light-build.sh target/debug/cantrip
set -euo pipefail
cantrip=$(realpath "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
export HOME=$scratch

# Runs a command, and fails unless it ends with this exit status and prints each of the texts before `--`.
expect() {
  local wanted=$1 texts=() text printed status=0
  shift
  while [ "$1" != -- ]; do texts+=("$1"); shift; done
  shift
  printed=$("$@" 2>&1 </dev/null) || status=$?
  for text in "${texts[@]}"; do
    if [ "$status" != "$wanted" ] || ! grep -qF -e "$text" <<<"$printed"; then
      printf 'expected exit %s and "%s" of: %s\nexit %s:\n%s\n' "$wanted" "$text" "$*" "$status" "$printed" >&2
      exit 1
    fi
  done
}

expect 2 WA-RES-I-003 'features full' -- "$cantrip" acp
echo '{"responses": [{"code": "done(1)"}]}' >py.yaml
printf 'name = "py"\ncrystal = "scripted/py.yaml"\nmedium = "python"\n' >py.toml
expect 4 MCP-EXEC-E-003 'features full' -- "$cantrip" cast py.toml go
expect 0 'not in this build; --features full has it' -- "$cantrip" doctor
