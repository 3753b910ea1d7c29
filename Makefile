# Every target does its own set-up: see `make help`.

CARGO ?= cargo
HAWSER := $(or $(CARGO_TARGET_DIR),target)/release/hawser
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: help setup build size test hostile fuzz bench demo advisories clean

help:
	@echo 'make demo        build, then one path against replication on five paths that misbehave; needs root'
	@echo 'make test        everything that a change has to pass; says what it skips and why'
	@echo 'make build       the optimised programs, $(HAWSER) and beside it hawser-lab, with its experiments'
	@echo 'make size        the size of the stripped program that is installed, at most 25 MB'
	@echo 'make hostile     ask a controller what its OpenAPI document does not foresee'
	@echo 'make fuzz        search for bytes that a parser cannot handle: TARGET=wire (all of fuzz/src/bin by default), SECONDS=60 for each'
	@echo 'make bench       cost per packet of the eBPF programs, of coding and of the emulator, throughput of the tunnel and of TCP in it over unlike uplinks, into target/bench; needs root'
	@echo 'make advisories  known weaknesses of the dependencies; fetches the list from the network'
	@echo 'make setup       what the other targets do first: install what is missing'
	@echo 'make clean       remove everything that was built'

setup:
	@xtask/setup.sh

build: setup
	$(CARGO) build --release --locked

size: build
	@strip -o $(HAWSER).stripped $(HAWSER)
	@wc -c $(HAWSER).stripped
	@test $$(wc -c < $(HAWSER).stripped) -lt 25000000

test: setup
	@xtask/setup.sh checks
	@$(CARGO) run --quiet --locked --package xtask -- test

hostile: build
	@xtask/setup.sh hostile
	@xtask/schemathesis.sh $(HAWSER)

TARGET ?= all
SECONDS ?= 60
fuzz: setup
	@xtask/setup.sh fuzz
	@fuzz/run.sh "$(TARGET)" "$(SECONDS)"

bench: build
	@xtask/setup.sh bench
	$(AS_ROOT) $(HAWSER) lab bench

demo: build
	$(AS_ROOT) $(HAWSER) lab run table1 --case single/fhd,replicate/fhd --seconds 36 --attempts 1 --out target/lab/demo

advisories:
	@xtask/setup.sh checks
	$(CARGO) deny check advisories

clean:
	$(CARGO) clean
