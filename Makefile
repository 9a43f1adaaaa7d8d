# Two commands: `make demo` trains on eight TPU cores of this machine, `make test` runs every check.
# Both build .venv first; the second time that is instant. PYTHON=python3.12 picks a Python by hand.

PYTHON ?=
export PYTHON

.PHONY: demo test

demo: .venv/anytpu.stamp
	.venv/bin/anytpu demo

test: .venv/anytpu-dev.stamp
	scripts/check

# kernels/ is compiled into .venv where g++ is at hand.
KERNELS := $(wildcard kernels/pyproject.toml kernels/CMakeLists.txt kernels/*/*.cc kernels/*/*.h kernels/src/*/*.py)

.venv/anytpu.stamp: pyproject.toml $(KERNELS)
	scripts/venv .

.venv/anytpu-dev.stamp: pyproject.toml $(KERNELS)
	scripts/venv '.[dev]'
