"""MindSpore Serving's own protocol: `MSService.Predict` and `POST /model/...`."""
