"""`tpu.ways_to_fit`: changes of a step that need less memory, each compiled and priced."""
