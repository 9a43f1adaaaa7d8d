"""A network in whole numbers: calibrated, quantized, and computed plainly as the reference."""
