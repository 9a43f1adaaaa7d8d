"""The table of old names: what each was, and what to write for it; `page` makes docs/migrate.md of it."""
