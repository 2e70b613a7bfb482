"""The runner's place in the start: loads the model, then captures."""

import importlib
import os


class ModelRunner:
    def __init__(self, tp_rank, is_draft_worker=False):
        self.tp_rank, self.pp_rank, self.dp_rank = tp_rank, 0, None
        self.is_draft_worker = is_draft_worker
        self.eager_runner = self.decode_cuda_graph_runner = object()
        self.model = None

    def load_model(self):
        models = importlib.import_module("sglang.srt.models.deepseek_v4")
        self.model = getattr(models, os.environ.get("STUB_MODEL", "DeepseekV4ForCausalLM"))()

    def init_cuda_graphs(self):
        if os.environ.get("STUB_CAPTURE", "1") == "0":
            return
        self.decode_cuda_graph_runner = object()
        if os.environ.get("STUB_CAPTURE") != "around":
            self.model.forward()
