"""Where SwiGLU lies in SGLang: data for the plugin's table, without torch."""

PATH = "sglang.srt.layers.activation:SiluAndMul.forward_native"
"""What ``SiluAndMul.forward_cpu`` hands over to where the CPU has no AMX."""

FINGERPRINTS = ("f49be663b3d90dcb",)
"""The same in 0.5.15.post1, 0.5.22 and 0.5.23."""
