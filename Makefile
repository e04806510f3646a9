# Strait: `make demo` runs the main job, `make test` passes the tests. `make` alone lists the rest.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:
.DEFAULT_GOAL := help

# rustup and Debian keep cargo, ip and ethtool where the PATH of make may not look.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

FUZZ_SECONDS ?= 30
PREFIX ?= /usr/local
DESTDIR ?=
BENCH_ARGS ?=

.PHONY: help setup demo install test test-vm bench fuzz audit book reference

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what all targets need (apt-get; as root or with sudo); each target installs its own part by itself
	@scripts/setup test
	@scripts/setup bench

demo: ## build, then see in half a minute what Strait does
	@scripts/setup demo
	cargo build --locked --profile demo --package strait-cli --package strait-proxy --package strait-pcap
	"$${CARGO_TARGET_DIR:-target}/demo/strait" demo

install: ## copy the programs, their library, man pages and completions below DESTDIR and PREFIX (/usr/local)
	@scripts/setup build
	@scripts/install "$(DESTDIR)$(PREFIX)"

test: ## format, lints, house rules, all tests, count of skipped tests
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

test-vm: ## the tests in virtual machines: other kernels, emulated NICs, instructions counted
	@scripts/setup vm
	@scripts/test-vm

bench: ## measure Strait beside its peers (BENCH_ARGS="..."); results in bench/results/
	@scripts/setup bench
	cargo run --release --package bench -- $(BENCH_ARGS)
	if [[ -z "$(BENCH_ARGS)" ]]; then scripts/bench-paths; fi

fuzz: ## run every fuzz target for FUZZ_SECONDS (30) each; needs nightly and cargo-fuzz
	@scripts/fuzz $(FUZZ_SECONDS)

audit: ## check licences and advisories of the dependencies; needs cargo-deny
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is not installed: cargo install cargo-deny" >&2; exit 1; }
	cargo deny check

book: ## build the documents as a book; needs mdbook
	@scripts/book

reference: ## compare docs/reference with the programs; `cargo xtask reference` writes it again
	cargo xtask reference --check
