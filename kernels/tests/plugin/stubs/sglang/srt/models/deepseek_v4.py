"""A target that is a method, and a model that calls all of them."""

from sglang.srt.layers import activation, early, late


class DecoderLayer:
    def pre(self, x):
        return f"stock pre of {x}"


class Attention:
    n_local_heads = 8


class Config:
    hidden_size = 4096


class Body:
    def __init__(self, layer):
        layer.self_attn = Attention()
        self.layers = [layer]


class DeepseekV4ForCausalLM:
    config = Config()

    def __init__(self):
        self.layer = DecoderLayer()
        self.model = Body(self.layer)

    def forward(self):
        from sglang.srt.layers.attention import attend

        return [
            attend(q="q"),
            early.attend(q="q"),
            late.boundary(64),
            late.boundary(8),
            self.layer.pre("x"),
            activation.Act().forward("x"),
        ]


class LlamaForCausalLM(DeepseekV4ForCausalLM):
    pass
