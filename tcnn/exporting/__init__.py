"""Export models to ONNX and torch.export, checked against PyTorch."""
