"""The DeepSeek-V4 indexer: paged MQA logits over the compressed context, and the top-k that picks what sparse attention reads."""
