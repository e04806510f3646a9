# Strait: `make demo` runs the main job, `make test` passes the tests. `make` alone lists the rest.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:
.DEFAULT_GOAL := help

# Directories of cargo (rustup), ip and ethtool (Debian), which the PATH may lack.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

FUZZ_SECONDS ?= 30
PREFIX ?= /usr/local
DESTDIR ?=
BENCH_ARGS ?=

.PHONY: help setup demo install dist test-packages test test-vm test-arm64 bench fuzz audit book reference

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the packages of all targets (apt-get; as root or with sudo); each target also installs its own
	@scripts/setup test
	@scripts/setup bench

demo: ## build, then demonstrate Strait in half a minute
	@scripts/setup demo
	cargo build --locked --profile demo --package strait-cli --package strait-proxy --package strait-pcap
	"$${CARGO_TARGET_DIR:-target}/demo/strait" demo

install: ## copy the programs, their library, man pages and completions below DESTDIR and PREFIX (/usr/local)
	@scripts/setup build
	@scripts/install "$(DESTDIR)$(PREFIX)"

dist: ## build a release below target/packages: archive, Debian packages, licences, bill of materials, checksums
	@scripts/setup dist
	@scripts/dist

test-packages: dist ## install, use, upgrade and purge the packages in a fresh Debian (as root)
	@scripts/test-packages "$${CARGO_TARGET_DIR:-target}/packages"

test-arm64: ## build for arm64 and run the tests that work in an emulated process
	@scripts/setup arm64
	@scripts/test-arm64

test: ## check format, lints and house rules, run all tests, compare the number of skipped tests
	@scripts/setup test
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets --features strait-cli/vm -- -D warnings
	cargo xtask tidy
	cargo xtask layers
	scripts/test
	cargo xtask reference --check
	CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}/loom" RUSTFLAGS="--cfg loom" \
		cargo test --package strait-sys --lib --release loom
	$(MAKE) test-vm

test-vm: ## run the tests in virtual machines: other kernels, emulated NICs, instruction counts
	@scripts/setup vm
	@scripts/test-vm

bench: ## measure Strait and its peers (BENCH_ARGS="..."); results are in bench/results/
	@scripts/setup bench
	@scripts/bench $(BENCH_ARGS)

fuzz: ## run every fuzz target for FUZZ_SECONDS (30) each; needs nightly and cargo-fuzz
	@scripts/fuzz $(FUZZ_SECONDS)

audit: ## check licences and advisories of the dependencies; needs cargo-deny
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is not installed: cargo install cargo-deny" >&2; exit 1; }
	cargo deny check

book: ## build the documents as a book; needs mdbook
	@scripts/book

reference: ## compare docs/reference with the programs; `cargo xtask reference` writes it again
	cargo xtask reference --check
