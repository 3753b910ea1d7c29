#!/bin/sh
# Sends a controller what its OpenAPI document does not foresee, and holds its answers to that document.
# Usage: xtask/schemathesis.sh HAWSER [EXAMPLES]: the program, and test cases for each operation (default 50).
# Makes a Python environment in the target directory at the first run. Fails when an answer is wrong.
set -eu

hawser=$(realpath "${1:?usage: xtask/schemathesis.sh HAWSER [EXAMPLES]}")
examples=${2-50}
version=4.32.5
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
environment=$(realpath "$target")/schemathesis

if [ "$("$environment/bin/schemathesis" --version 2>/dev/null)" != "schemathesis, version $version" ]; then
    echo "schemathesis: making a Python environment in $environment"
    python3 -m venv --clear "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$version"
fi

folder=$(mktemp -d)
controller=
finish() {
    [ -z "$controller" ] || kill "$controller" 2>/dev/null || true
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=https://127.0.0.1:$port
cat >"$folder/controller.toml" <<END
listen = "127.0.0.1:$port"
state = "$folder/state"
[limits]
# What is wrong is to be told, not that there was so much of it.
operator_requests_per_s = 1e6
node_requests_per_s = 1e6
failures_per_minute = 1e6
END
RUST_LOG=warn "$hawser" controller --config "$folder/controller.toml" &
controller=$!

ctl() {
    "$hawser" ctl --controller "$url" --authority "$folder/state/authority.pem" --token-file "$folder/state/admin.token" "$@"
}
tries=0
until ctl whoami >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { ctl whoami; exit 1; }
    sleep 0.1
done

ctl tenant create acme
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=edge-1 \
    -keyout "$folder/node.key" -out "$folder/node.csr" 2>/dev/null
token=$(ctl node enrol edge-1 --tenant acme)
python3 - "$token" "$folder/node.csr" >"$folder/enrol.json" <<'END'
import json, sys
print(json.dumps({"token": sys.argv[1], "csr": open(sys.argv[2]).read()}))
END
curl --silent --show-error --fail --cacert "$folder/state/authority.pem" --json "@$folder/enrol.json" "$url/v1/enrol" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["certificate"], end="")' >"$folder/node.crt"

ctl node enrol edge-2 --tenant acme >/dev/null
ctl flow create stage --tenant acme --ingress edge-1 --egress edge-2 --destination 203.0.113.0/24 --mode evidence

# A body may have the right form and still say what cannot be: 422.
cat >"$folder/anything.toml" <<'END'
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429", "503"]
END
# The same, but most requests are about things that exist.
cat "$folder/anything.toml" - >"$folder/known.toml" <<'END'
[parameters]
"path.node" = "edge-1"
"path.flow" = "stage"
"path.tenant" = "acme"
END

# Streams do not end, so they are not among what is asked here.
check() {
    configuration=$1
    shift
    (cd "$folder" && "$environment/bin/schemathesis" --config-file "$configuration" run "$url/openapi.json" --url "$url" \
        --tls-verify "$folder/state/authority.pem" --exclude-path-regex '/stream$' --checks all \
        --phases examples,coverage,fuzzing --max-examples "$examples" --seed 1 --request-timeout 10 \
        --generation-database none --continue-on-failure --no-color "$@")
}
bearer="Authorization: Bearer $(cat "$folder/state/admin.token")"
status=0
echo 'schemathesis: as an operator, about anything'
check anything.toml --exclude-tag nodes --header "$bearer" || status=1
echo 'schemathesis: as an operator, about what exists'
check known.toml --exclude-tag nodes --exclude-method DELETE --header "$bearer" || status=1
echo 'schemathesis: as a node, about anything'
check anything.toml --include-tag nodes --request-cert node.crt --request-cert-key node.key || status=1
echo 'schemathesis: as a node, about itself'
check known.toml --include-tag nodes --request-cert node.crt --request-cert-key node.key || status=1
kill -0 "$controller" || { echo 'schemathesis: the controller has ended'; exit 1; }
exit $status
