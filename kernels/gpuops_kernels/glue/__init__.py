"""What lies between the large kernels of a layer: norms, rotary embedding, FP8 quantisation, the KV store, and the streams of mHC."""
