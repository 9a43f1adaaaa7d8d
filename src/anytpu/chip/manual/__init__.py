"""The manual of the instruction set: `docs` makes docs/chip_isa.md of the tables, with one program as the example."""
