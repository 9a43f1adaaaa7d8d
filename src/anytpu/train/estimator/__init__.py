"""`TPUEstimator`: a model function, trained, evaluated and asked for predictions on all cores."""
