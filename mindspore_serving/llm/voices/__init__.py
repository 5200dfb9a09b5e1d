"""Text to speech: texts to phonemes, phonemes to samples by an ONNX model, samples to files."""
