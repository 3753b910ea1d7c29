#!/bin/sh
# Runs a target of this folder, or all of them, under libFuzzer: run.sh TARGET|all SECONDS. Inputs that reach new code are kept
# in target/fuzz/corpus, and found failures in target/fuzz/failures.
set -eu
cd "$(dirname "$0")/.."

# The coverage that libFuzzer reads, as the stable compiler can add it. It is not for build scripts, hence --target.
instrumented='--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares'
host=$(rustc --print host-tuple)
folder=target/fuzz

run() {
    case $1 in
    tun) feature=device ;;
    stream | packets) feature=tunnel ;;
    *) feature= ;;
    esac
    RUSTFLAGS=$(echo $instrumented) cargo build --quiet --locked --package hawser-fuzz --bin "$1" --features "$feature" \
        --target "$host" --target-dir "$folder/build"
    binary=$folder/build/$host/debug/$1
    mkdir -p "$folder/corpus/$1" "$folder/failures/$1"
    HAWSER_FUZZ_SEEDS=$folder/corpus/$1 "$binary"
    echo "== $1"
    if ! "$binary" -max_total_time="$2" -max_len=4096 -use_value_profile=1 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$folder/failures/$1/" "$folder/corpus/$1"; then
        echo "fuzz: replay it with: cargo run -p hawser-fuzz --all-features --bin $1 -- $folder/failures/$1/FILE" >&2
        exit 1
    fi
}

case $1 in
all)
    for file in fuzz/src/bin/*.rs; do
        run "$(basename "$file" .rs)" "$2"
    done
    ;;
*) run "$1" "$2" ;;
esac
