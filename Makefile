# Strait: `make demo` builds and demonstrates it, `make test` runs all checks, `make` alone lists the targets.

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

.PHONY: help setup demo install dist test-packages test test-vm test-vm-debug test-vm-kcsan test-arm64 bench ci msrv audit docs book fuzz miri release-check reference

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

test: ## check format, lints and rules of the project, run all tests, compare the number of skipped tests
	@scripts/test

test-vm: ## run the tests in virtual machines: other kernels, emulated NICs, instruction counts
	@scripts/setup vm
	@scripts/test-vm

test-vm-debug: ## run the tests of the kernel module on a kernel that checks itself (builds it: 20 minutes)
	@scripts/test-vm --debug-kernel

test-vm-kcsan: ## run them on a kernel that finds data races in the module (builds it: 15 minutes)
	@scripts/test-vm --kcsan-kernel

bench: ## measure Strait and compare it with other programs (BENCH_ARGS="..."); results are in bench/results/
	@scripts/setup bench
	@scripts/bench $(BENCH_ARGS)

ci: ## run the checks beyond the tests, which are the next seven and test-packages
	@scripts/ci

msrv: ## compile with the oldest supported Rust
	@scripts/ci msrv

audit: ## check licences, sources and advisories of the dependencies
	@scripts/ci audit

docs: ## build the crates' documentation without warnings
	@scripts/ci docs

book: ## build the documents as a book
	@scripts/ci book

fuzz: ## run every fuzz target for FUZZ_SECONDS (30) each
	@FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/ci fuzz

miri: ## look for undefined behaviour in unsafe code
	@scripts/ci miri

release-check: ## prepare the next release without a trace, and package the crates
	@scripts/ci release

reference: ## compare docs/reference with the programs; `cargo xtask reference` generates it again
	cargo xtask reference --check
