# `make demo` trains on eight virtual TPU cores, or on this machine's TPU or GPU; `make test` runs the checks,
# and `make test CHECK=--all` those of CI, with the slow tests. Each builds .venv first; a second call reuses it.
# PYTHON=python3.12 selects the Python.

PYTHON ?=
CHECK ?=
export PYTHON

.PHONY: demo test

demo: .venv/anytpu.stamp
	.venv/bin/anytpu demo

test: .venv/anytpu-dev.stamp
	scripts/check $(CHECK)

# kernels/ is compiled into .venv if g++ is installed.
KERNELS := $(wildcard kernels/pyproject.toml kernels/CMakeLists.txt kernels/*/*.cc kernels/*/*.h kernels/src/*/*.py)

.venv/anytpu.stamp: pyproject.toml $(KERNELS)
	scripts/venv .

.venv/anytpu-dev.stamp: pyproject.toml $(KERNELS)
	scripts/venv '.[dev]'
