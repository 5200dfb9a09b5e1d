"""Files of a model: weights in every format, adapters, pooling, recommended sampling."""
