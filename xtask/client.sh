#!/bin/sh
# Generates a client in Python from the controller's OpenAPI document, and checks that it is complete and can be used.
# Usage: xtask/client.sh HAWSER. Exits with 77 if the generator cannot be installed.
set -eu

hawser=$(realpath "${1:?usage: xtask/client.sh HAWSER}")
cd "$(dirname "$0")/.."
environment=$(xtask/python.sh openapi-python-client 0.29.1) || exit 77

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$hawser" controller --openapi >openapi.json
# Without formatting, which would need ruff. The generator warns of two things that it cannot express: the type of
# `GET /v1/me`, and the metrics, which are not JSON.
echo 'post_hooks: []' >config.yml
"$environment/bin/openapi-python-client" generate --path openapi.json --config config.yml --output-path generated \
    --meta none >log 2>&1 || { cat log; exit 1; }
"$environment/bin/python" -W error - <<'END'
import importlib, json, pathlib

operations = {
    operation["operationId"]
    for path in json.loads(pathlib.Path("openapi.json").read_text())["paths"].values()
    for operation in path.values()
}
modules = {path.stem: path for path in pathlib.Path("generated/api").glob("*/*.py")}
missing = operations - modules.keys()
assert not missing, f"the client has no {missing}"
for path in pathlib.Path("generated").rglob("*.py"):
    importlib.import_module(".".join(path.with_suffix("").parts))
models = importlib.import_module("generated.models")
flow = {"name": "stage", "tenant": "acme", "ingress": "a", "egress": "b", "mode": "evidence",
        "select": {"destination": "203.0.113.0/24"}}
assert models.Flow.from_dict(flow).to_dict()["select"] == flow["select"]
print(f"client: {len(operations)} operations, {len(modules)} modules")
END
