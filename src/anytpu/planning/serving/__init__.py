"""Language models before renting: presets, the step of one token, and the plan of serving."""
