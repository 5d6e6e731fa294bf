# Two commands on a fresh machine: `make demo` and `make test`. Everything else is for people who change the code.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEBIAN := slurmctld slurmd slurm-client munge glusterfs-server glusterfs-client strace iproute2 attr util-linux
DEBIAN += xfsprogs btrfs-progs squashfs-tools erofs-utils autofs fuse3 rclone sshfs openssh-sftp-server
DEBIAN += bindfs fuse2fs mergerfs squashfuse quota

.PHONY: demo test check e2e docs bench install system clean

demo: install ## lose a node in the middle of a save, and come back bit for bit (no Slurm, no GPU, no root)
	$(BIN)/ckptctl demo

test: install system ## everything, the cluster test included where the machine can
	$(BIN)/pytest

check: install ## format, lint, types, imports, fast tests
	$(BIN)/ruff format --check ckptctl plugins tests slurm docs
	$(BIN)/ruff check ckptctl plugins tests slurm docs
	$(BIN)/mypy ckptctl plugins tests/support
	$(BIN)/lint-imports
	$(BIN)/pytest tests/unit tests/property tests/cli -q

e2e: install system ## the cluster scenarios only
	$(BIN)/pytest tests/e2e tests/conformance -m e2e

docs: install ## the reference pages that are made from the code
	$(BIN)/python docs/generate.py

bench: install ## ratios, all rivals in one run
	$(BIN)/python tests/bench/check.py
	$(BIN)/python tests/bench/prove.py

install: $(STAMP)

$(STAMP): pyproject.toml tests/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c tests/constraints.txt -e '.[torch,dev]'
	touch $@

system: ## what the cluster tests and those on real file systems need, by Debian package name
	@if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	  echo "make test: not root on Debian: tests that need Slurm, GlusterFS, strace or mounts are skipped, each with its reason"; \
	elif ! dpkg -s $(DEBIAN) >/dev/null 2>&1; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(DEBIAN); \
	fi

clean:
	rm -rf $(VENV) .demo build *.egg-info
