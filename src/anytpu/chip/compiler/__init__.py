"""From a quantized network to instructions."""
