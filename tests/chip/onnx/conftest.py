from __future__ import annotations

import chip_oracle


def pytest_terminal_summary(terminalreporter):
    """Say which products onnxruntime computed here: on some CPUs those of int8 would saturate."""
    terminalreporter.write_line(f"onnxruntime as the witness of the chip: {chip_oracle.products()}")
