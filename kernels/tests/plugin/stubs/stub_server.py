"""A server of the stub engine: a launcher that loads plugins, and one spawned process a rank that loads a model, captures and serves one request."""

import json
import multiprocessing
import os
import sys
from pathlib import Path

PRISTINE = Path(os.environ["STUB_PRISTINE"])


def table():
    """Targets in the stub engine, with the fingerprints of its untouched sources."""
    from gpuops_kernels.plugin import sources, targets

    def target(path, ours, **how):
        file, attribute = PRISTINE / Path(*path.partition(":")[0].split(".")).with_suffix(".py"), path.partition(":")[2]
        return targets.Target(path, ours, (sources.fingerprint(file, attribute),), **how)

    families = {
        "mla_decode": targets.Family(
            True, "stock is slow", (target("sglang.srt.layers.attention:attend", "stub_ops:attend", heads=True),)
        ),
        "indexer": targets.Family(
            False, "stock is fast", (target("sglang.srt.layers.attention:attend", "stub_ops:attend", heads=True),)
        ),
        "mhc": targets.Family(
            True,
            "stock is slow",
            (
                target("sglang.srt.layers.boundary:boundary", "stub_ops:boundary", around=True),
                target("sglang.srt.models.deepseek_v4:DecoderLayer.pre", "stub_ops:pre"),
            ),
            hiddens=frozenset({4096}),
        ),
        "swiglu": targets.Family(
            False,
            "where it is asked for",
            (target("sglang.srt.layers.activation:Act.forward_native", "stub_ops:act"),),
            frozenset({None}),
            models="",
        ),
    }
    anchor = targets.Target("sglang.srt.model_executor.model_runner:ModelRunner.init_cuda_graphs")
    return (targets.Engine("0.5.23", "0.5.23", anchor, families),)


def use_stub_table():
    from gpuops_kernels import registry
    from gpuops_kernels.plugin import targets

    targets.ENGINES = table()
    # What the real families ask for is in their launches.py, which needs a real torch.
    key = os.environ.get("STUB_KEY")
    registry.family = lambda name: registry.Family(name, (tuple(key.split("/")),) if key else (), ())


def run_scheduler_process(tp_rank, pipe):
    use_stub_table()
    import sglang.srt.layers.early  # noqa: F401  (the scheduler's module imports much before its function runs)

    if os.environ.get("STUB_OTHER_PLUGIN"):
        import functools

        from sglang.srt.layers import attention

        stock = attention.attend
        attention.attend = functools.wraps(stock)(lambda **kwargs: stock(**kwargs))

    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.model_executor.model_runner import ModelRunner

    runner = ModelRunner(tp_rank)
    runner.load_model()
    if os.environ.get("STUB_DRAFT"):
        draft = ModelRunner(tp_rank, is_draft_worker=True)
        draft.init_cuda_graphs()
    else:
        runner.init_cuda_graphs()
    pipe.send(runner.model.forward())


def main():
    use_stub_table()
    from sglang.srt.plugins import load_plugins

    load_plugins()
    spawn = multiprocessing.get_context("spawn")
    ranks = []
    for rank in range(int(os.environ.get("STUB_RANKS", "1"))):
        mine, theirs = spawn.Pipe(duplex=False)
        process = spawn.Process(target=run_scheduler_process, args=(rank, theirs))
        process.start()
        theirs.close()
        ranks.append((process, mine))
    codes, answers = [], []
    for process, pipe in ranks:
        try:
            answers.append(pipe.recv())
        except EOFError:
            answers.append(None)
        process.join()
        codes.append(process.exitcode)
    hooked = [type(finder).__module__ for finder in sys.meta_path if type(finder).__module__.startswith("gpuops")]
    print(json.dumps({"codes": codes, "answers": answers, "launcher_hooks": hooked}))


if __name__ == "__main__":
    main()
