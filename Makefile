# Every target does its own set-up: see `make help`.

CARGO ?= cargo
# Packages and benchmarks are optimised as a whole, and have line numbers for profilers and backtraces.
PROFILE ?= release
package bench flamegraph codecs: PROFILE := dist
demo: PROFILE := demo
HAWSER = $(or $(CARGO_TARGET_DIR),target)/$(PROFILE)/hawser
# The programs of the packages, and those that `make build` builds.
INSTALLED := hawser hawser-agent hawser-tunnel hawser-media hawser-controller hawser-ctl
PROGRAMS := $(INSTALLED) hawser-lab
package package-test guide-test: PROGRAMS := $(INSTALLED) hawser-pages
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo)

# Programs to install have no paths of this machine in their messages.
CRATES := $(or $(CARGO_HOME),$(HOME)/.cargo)/registry/src
RELEASE_FLAGS := --remap-path-prefix=$(CRATES)=crates --remap-path-prefix=$(CURDIR)=hawser --remap-path-prefix=$(abspath $(or $(CARGO_TARGET_DIR),target))=target
# Debian's names of this machine's architecture, and of the one that `make package` makes packages for.
MACHINE_ARCH := $(shell dpkg --print-architecture 2>/dev/null)
ARCH ?= $(MACHINE_ARCH)
PACKAGES := $(or $(CARGO_TARGET_DIR),target)/package

.PHONY: help setup page build build-arm64 package package-test guide-test test kernels hostile interop fuzz bench flamegraph codecs rivals demo advisories clean

help:
	@echo 'make demo        build, then stream over five impaired paths, with one path and with replication, pulled and pushed, and write a report with the pictures that arrived; then, where Node 20.19 and npm are installed, serve a page on which you watch both and disturb the network; needs root'
	@echo 'make test        run all checks that a change has to pass; checks that cannot run here are listed with the reason'
	@echo 'make kernels     run the tests that need parts which this kernel may not have, on the kernel of Debian in QEMU'
	@echo 'make build       build the optimised programs: $(HAWSER), and beside it those that it starts'
	@echo 'make page        build the page with which browsers watch; programs that are built afterwards have it. make build does this where Node 20.19 and npm are installed'
	@echo 'make package     build the Debian packages hawser and hawser-ctl in $(PACKAGES); with ARCH=arm64 for ARM'
	@echo 'make package-test  install, upgrade under traffic, remove and purge the packages on a fresh Debian in QEMU, and run each service as its unit; takes 2 minutes, needs root'
	@echo 'make guide-test  type the ten-minute start of docs/guide on two machines in QEMU; takes 4 minutes, needs root'
	@echo 'make hostile     send a controller requests that its OpenAPI document does not describe'
	@echo 'make interop     take and publish broadcasts with moq-relay, the command moq, and Chromium with the library @moq/net; installs all but Chromium and npm in target/tools, which takes 10 minutes once'
	@echo 'make fuzz        search for bytes that a parser cannot handle: TARGET=wire (default: every file of fuzz/src/bin), SECONDS=60 for each'
	@echo 'make bench       measure the cost per packet of the eBPF programs and of the relay, the coding and the emulator, the time and bytes per frame of the codecs, and the throughput of the tunnel, and of TCP in it over two different uplinks; results in target/bench; needs root'
	@echo 'make flamegraph  draw where client and server of the tunnel spend their time, docs/images/tunnel-client.svg and tunnel-server.svg; needs root'
	@echo 'make codecs      compare the codecs over the recordings in HAWSER_DATA, also with the C++ Draco, by bytes, time, point distance and VMAF; takes 20 minutes; needs no root'
	@echo 'make rivals      install moq-relay, a crate, into target/tools, which the lab then compares with our relay (hawser lab run relay); takes ten minutes'
	@echo 'make advisories  check the dependencies for known vulnerabilities; downloads the list of them'
	@echo 'make setup       install what the other targets need; each of them does this itself'
	@echo 'make clean       remove everything that was built'

setup:
	@xtask/setup.sh

page:
	@xtask/setup.sh page
	@web/build.sh

BUILD = RUSTFLAGS='$(RELEASE_FLAGS)' $(CARGO) build --profile $(PROFILE) --locked
build: setup
	@if ! web/build.sh --check || ! $(MAKE) --no-print-directory page; then web/build.sh --clean; echo 'build: the programs do not have the page of the viewer'; fi
	$(BUILD) $(PROGRAMS:%=--package %)

# The same programs for ARM, with the linker and the libraries that setup.sh has installed.
ARM := aarch64-unknown-linux-gnu
ARM_HAWSER = $(or $(CARGO_TARGET_DIR),target)/$(ARM)/$(PROFILE)/hawser
ARM_LIBRARIES := $(abspath $(or $(CARGO_TARGET_DIR),target))/arm64
ARM_ROOT := $(ARM_LIBRARIES)/root/usr
ARM_FLAGS := -Lnative=$(ARM_ROOT)/lib/aarch64-linux-gnu -Clink-arg=-Wl,-rpath-link=$(ARM_ROOT)/lib/aarch64-linux-gnu
build-arm64: setup
	@xtask/setup.sh arm64
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc RUSTFLAGS='$(RELEASE_FLAGS) $(ARM_FLAGS)' \
		CFLAGS_aarch64_unknown_linux_gnu='-isystem $(ARM_ROOT)/include -isystem $(ARM_ROOT)/include/aarch64-linux-gnu' \
		$(CARGO) build --profile $(PROFILE) --locked --target $(ARM) $(INSTALLED:%=--package %)

ifeq ($(ARCH),$(MACHINE_ARCH))
PACKAGED = $(dir $(HAWSER))
LIBRARIES :=
else ifeq ($(ARCH),arm64)
package: page build-arm64
PACKAGED = $(dir $(ARM_HAWSER))
LIBRARIES := $(ARM_LIBRARIES)/packages
else
PACKAGED = $(error packages are for $(MACHINE_ARCH), this machine's architecture, or for arm64, and not for '$(ARCH)')
endif
# A program of this machine writes the manual pages, also for the other architecture.
package: page build
	@xtask/setup.sh package
	@PAGES=$(dir $(HAWSER))hawser-pages LIBRARIES=$(LIBRARIES) packaging/build.sh $(ARCH) $(PACKAGED) $(PACKAGES)

package-test: build
	@xtask/setup.sh package-test
	@$(AS_ROOT) packaging/test.sh $(dir $(HAWSER))

guide-test: build
	@xtask/setup.sh package-test
	@$(AS_ROOT) packaging/guide-test.sh $(dir $(HAWSER))

test: setup
	@xtask/setup.sh checks
	@$(CARGO) run --quiet --locked --package xtask -- test

kernels: setup
	@xtask/setup.sh kernels
	@$(CARGO) run --quiet --locked --package xtask -- kernels

hostile: build
	@xtask/setup.sh hostile
	@xtask/schemathesis.sh $(HAWSER)

interop: setup
	@media/moq/interop/install.sh "$(CURDIR)/target/tools"
	@HAWSER_TOOLS="$(CURDIR)/target/tools" $(CARGO) test --package hawser-moq --features interop-tests --test interop -- --nocapture --test-threads 1

TARGET ?= all
SECONDS ?= 60
fuzz: setup
	@xtask/setup.sh fuzz
	@fuzz/run.sh "$(TARGET)" "$(SECONDS)"

bench: build
	@xtask/setup.sh bench
	$(AS_ROOT) $(HAWSER) lab bench

# As its own lock file may name releases that the registry has no more, it is built with compatible ones otherwise.
INFERNO := install inferno --version 0.12.8 --root target/tools --target-dir target/tools/build
flamegraph: build
	@xtask/setup.sh flamegraph
	$(CARGO) $(INFERNO) --locked || $(CARGO) $(INFERNO)
	@$(AS_ROOT) xtask/flamegraph.sh $(HAWSER) target/tools docs/images

codecs: build
	@xtask/setup.sh codecs
	@HAWSER_VMAF=$$(xtask/vmaf.sh) && export HAWSER_VMAF && $(HAWSER) lab run codecs

# Only what it needs, and the page where it can be built.
demo: setup
	@if ! $(MAKE) --no-print-directory page; then web/build.sh --clean; echo 'demo: without a page to watch, only with a report'; fi
	$(BUILD) --package hawser --package hawser-agent --package hawser-media --package hawser-lab
	$(AS_ROOT) $(HAWSER) lab run table1 --case single/hd,replicate/hd,single/push,replicate/push --seconds 15 --attempts 1 --out target/lab/demo
	@[ ! -e media/page/dist/licences.txt.gz ] || $(AS_ROOT) $(HAWSER) lab demo

# As with inferno.
RIVAL := install moq-relay --version 0.17.10 --root target/tools --target-dir target/tools/build
rivals:
	$(CARGO) $(RIVAL) --locked || $(CARGO) $(RIVAL)
	rm -rf target/tools/build

advisories:
	@xtask/setup.sh checks
	$(CARGO) deny check advisories

clean:
	$(CARGO) clean
	web/build.sh --clean
