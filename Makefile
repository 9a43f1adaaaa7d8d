# Two commands: `make demo` trains on eight TPU cores of this machine, `make test` runs every check.
# Both build .venv first; the second time that is instant. PYTHON=python3.12 picks a Python by hand.

PYTHON ?=
export PYTHON

.PHONY: demo test

demo: .venv/anytpu.stamp
	.venv/bin/anytpu demo

test: .venv/anytpu-dev.stamp
	scripts/check

.venv/anytpu.stamp: pyproject.toml
	scripts/venv .

.venv/anytpu-dev.stamp: pyproject.toml
	scripts/venv '.[dev]'
