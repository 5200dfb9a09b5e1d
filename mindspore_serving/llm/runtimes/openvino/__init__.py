"""Language models on OpenVINO."""
