"""A place for SwiGLU that SGLang does not have: as when a release has renamed it."""

PATH = "sglang.srt.layers.activation:SiluAndMul.forward_fused"

FINGERPRINTS = ("f49be663b3d90dcb",)
