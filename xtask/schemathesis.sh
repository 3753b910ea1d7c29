#!/bin/sh
# Sends valid and invalid requests to a controller, and checks the responses against its OpenAPI document.
# Usage: xtask/schemathesis.sh HAWSER [EXAMPLES [SEED]]: the program, the number of random requests for each operation
# (default 50) in addition to those that cover the document, and their seed (default 1). Fails if a response is wrong, if the
# controller exits, or if requests were not handled as far as they should be. Exits with 77 if it cannot run at all.
set -eu

hawser=$(realpath "${1:?usage: xtask/schemathesis.sh HAWSER [EXAMPLES [SEED]]}")
examples=${2-50}
seed=${3-1}
cd "$(dirname "$0")/.."
environment=$(xtask/python.sh schemathesis 4.32.5) || exit 77

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
[tunnels]
addresses = ["10.77.0.0/16", "fd77::/64"]
servers = ["edge-1"]
[limits]
# Requests must be answered with their own errors, not with that of the rate limit.
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

# Sends a request as NODE: as_node NODE PATH BODY METHOD
as_node() {
    curl --silent --show-error --fail --cacert "$folder/state/authority.pem" --cert "$folder/$1.crt" --key "$folder/$1.key" \
        --request "$4" --json "$3" "$url/v1/nodes/$1/$2"
}
paths='{"number": 1, "interface": "wan1", "local": "192.0.2.1", "remote": "192.0.2.2"},
       {"number": 2, "interface": "wan2", "local": "192.0.2.5", "remote": "192.0.2.6"}'
ctl tenant create acme
for node in edge-1 edge-2; do
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$node" \
        -keyout "$folder/$node.key" -out "$folder/$node.csr" 2>/dev/null
    ctl node enrol "$node" --tenant acme --out "$folder/$node.token"
    python3 - "$folder/$node.token" "$folder/$node.csr" >"$folder/enrol.json" <<'END'
import json, sys
token, csr = (open(file).read() for file in sys.argv[1:])
print(json.dumps({"token": token.strip(), "csr": csr}))
END
    curl --silent --show-error --fail --cacert "$folder/state/authority.pem" --json "@$folder/enrol.json" "$url/v1/enrol" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["certificate"], end="")' >"$folder/$node.crt"
    as_node "$node" registration "{\"version\": \"1\", \"paths\": [$paths]}" PUT
    as_node "$node" reports '{"revision": 0}' POST
done
ctl flow create stage --tenant acme --ingress edge-1 --egress edge-2 --destination 203.0.113.0/24 --mode evidence
ctl token create spare --scope read --out "$folder/spare.token"
ctl track create view --tenant acme --writer edge-1 --reader edge-2

# A body may match the schema and still be invalid: 422. A request may depend on another state: 412.
cat >"$folder/anything.toml" <<'END'
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "412", "422", "429", "503"]
END
# The same for resources that exist, where requests must succeed. The key that has used a token may use it again.
cat "$folder/anything.toml" - >"$folder/known.toml" <<END
[warnings]
fail-on = ["missing_auth", "missing_test_data"]
[parameters]
"path.node" = "edge-1"
"path.flow" = "stage"
"path.track" = "view"
"path.tenant" = "acme"
"path.token" = "spare"
"body.tenant" = "acme"
"body.token" = "$(cat "$folder/edge-1.token")"
"body.csr" = '''
$(cat "$folder/edge-1.csr")'''
[[operations]]
include-name = "POST /v1/enrol"
parameters = { "body.node" = "edge-1" }
[[operations]]
include-name = ["POST /v1/flows", "PUT /v1/flows/{flow}"]
parameters = { "body.ingress" = "edge-1", "body.egress" = "edge-2" }
[[operations]]
include-name = "PUT /v1/flows/{flow}"
parameters = { "body.name" = "stage" }
[[operations]]
include-name = ["POST /v1/tracks", "PUT /v1/tracks/{track}"]
parameters = { "body.writers" = ["edge-1"], "body.readers" = ["edge-2"] }
[[operations]]
include-name = "PUT /v1/tracks/{track}"
parameters = { "body.name" = "view" }
END

# Streams do not end, so they are excluded.
check() {
    echo "schemathesis: $1"
    configuration=$2
    shift 2
    (cd "$folder" && "$environment/bin/schemathesis" --config-file "$configuration" run "$url/openapi.json" --url "$url" \
        --tls-verify "$folder/state/authority.pem" --exclude-path-regex '/stream$' --checks all \
        --phases examples,coverage,fuzzing --max-examples "$examples" --seed "$seed" --request-timeout 10 \
        --generation-database none --continue-on-failure --no-color "$@") || status=1
}
operator="Authorization: Bearer $(cat "$folder/state/admin.token")"
# The check ignored_auth repeats requests without authentication, but it only removes headers, not certificates.
node='--request-cert edge-1.crt --request-cert-key edge-1.key --exclude-checks ignored_auth'
status=0
# Requests that delete resources come last.
check 'an operator, existing resources' known.toml --exclude-tag nodes --exclude-method DELETE --header "$operator"
# shellcheck disable=SC2086 # several arguments
check 'a node, its own resources' known.toml --include-tag nodes $node
# shellcheck disable=SC2086
check 'a node, any resources' anything.toml --include-tag nodes $node
check 'an operator, any resources' anything.toml --exclude-tag nodes --header "$operator"
kill -0 "$controller" || { echo 'schemathesis: the controller has exited'; exit 1; }
exit $status
