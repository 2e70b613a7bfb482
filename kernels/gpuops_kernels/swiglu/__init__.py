"""SwiGLU of SGLang's CPU engine, in plain torch: a family to build, switch and prove where there is no GPU."""
