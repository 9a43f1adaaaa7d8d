"""Reports: records in, what people read out. Nothing here finds, trains or measures anything."""
