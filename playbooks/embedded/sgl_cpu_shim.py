"""Let SGLang serve a text model on a host without a GPU, without its CUDA-only dependencies.

SGLang has a CPU platform of its own (``SGLANG_USE_CPU_ENGINE=1``), whose model code falls back to plain PyTorch wherever its compiled
``sgl_kernel`` is missing. But its modules import three packages at load time whatever the platform, and those packages need CUDA, or a
gigabyte of disk: ``torchvision``, ``sgl_kernel`` and ``triton``. This module answers such an import with a stand-in.

* Inert unless ``SGLANG_USE_CPU_ENGINE=1``. It lies in the runtime's site-packages beside ``sgl_cpu_shim.pth``, so every Python of that
  runtime loads it, SGLang's spawned scheduler and detokenizer among them; loading it costs one comparison and at most one list append.
* The finder is the LAST of ``sys.meta_path``: a really installed package always wins.
* A stand-in serves imports, decorators and class bodies. Calling one raises ``RuntimeError``: nothing is computed by a stand-in, with one
  exception, :func:`assign_req_to_token_pool_cpu`, which SGLang's CPU path calls without a fallback of its own.

Tried with SGLang 0.5.22 and 0.5.23 beside PyTorch 2.13, Llama-like models. Models that call custom CPU operators do not load.
"""

import os
import sys

STAND_INS = ("torchvision", "sgl_kernel", "triton")

# Submodules that are reached as attributes, without an import statement of their own (``import triton; triton.language.constexpr``).
TRITON_SUBMODULES = ("language", "runtime", "compiler", "backends", "tools", "language.extra")
TRITON_DECORATORS = ("jit", "autotune", "heuristics")


class StandInFinder:
    """Finds and loads the stand-ins: a ``sys.meta_path`` entry, and the loader of what it finds."""

    def __init__(self):
        self._torch_has_looked = False
        self._torch_is_looking = False

    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root not in STAND_INS:
            return None
        # SGLang has its own fallback for sgl_kernel's submodules (sgl_kernel.scalar_type): those stay an ImportError.
        if root == "sgl_kernel" and name != root:
            return None
        if root == "triton" and not self._torch_knows_triton_is_absent():
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return stand_in_module(spec.name)

    def exec_module(self, module):
        if module.__name__ == "sgl_kernel":
            module.assign_req_to_token_pool_cpu = assign_req_to_token_pool_cpu
        elif module.__name__ == "torchvision":
            module.__version__ = "0.0.0"
        elif module.__name__ == "triton":
            module.__version__ = "3.0.0"
            # Pure arithmetic that SGLang uses on the host side, also without a GPU.
            module.cdiv = lambda a, b: -(-a // b)
            module.next_power_of_2 = lambda n: 1 << max(0, (int(n) - 1).bit_length())

    def _torch_knows_triton_is_absent(self):
        """Whether PyTorch has looked for Triton, and remembers that it found none.

        PyTorch compiles through Triton when it can import it, so it has to look before the stand-in exists; it caches the answer. Its
        look comes back here through ``find_spec``, which must find nothing while it lasts.
        """
        if self._torch_is_looking:
            return False
        if not self._torch_has_looked:
            self._torch_is_looking = True
            try:
                import torch._dynamo.utils
                import torch._inductor.runtime.triton_compat
                import torch._inductor.utils  # noqa: F401
                import torch.utils._triton

                torch.utils._triton.has_triton_package()
                torch.utils._triton.has_triton()
            finally:
                self._torch_is_looking = False
            self._torch_has_looked = True
        return True


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):
    """Enter each request's new cache slots into its row of the request-to-token table, in place.

    Args:
        req_pool_indices: row of each request, int tensor [requests].
        req_to_token: the table, int tensor [rows, pool_len], changed in place.
        start_offset, end_offset: the columns to fill, half open, int tensors [requests].
        out_cache_loc: the new slots of all requests one after another, int tensor [sum of end - start].
        pool_len: columns of the table; the kernel's signature has it, indexing needs it not.
    """
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()):
        count = end - start
        req_to_token[row, start:end] = out_cache_loc[taken : taken + count].to(req_to_token.dtype)
        taken += count


class _StandInType(type):
    """Metaclass of stand-in classes: any attribute is its own name, as of an enum (``InterpolationMode.BICUBIC``)."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _StandIn(metaclass=_StandInType):
    """Base of stand-in classes: can be subclassed, annotated with and made with any arguments; does nothing."""

    def __init__(self, *args, **kwargs):
        pass


def stand_in_module(name):
    """An empty module whose missing attributes are made up on first use: see :func:`_stand_in_attribute`."""

    class StandInModule(type(sys)):
        __path__ = []

        def __getattr__(self, attribute):
            # Introspection (inspect, copy, doctest) asks for dunders and must hear the truth.
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            value = _stand_in_attribute(self.__name__, attribute)
            setattr(self, attribute, value)
            return value

    return StandInModule(name)


def _stand_in_attribute(module, attribute):
    full = f"{module}.{attribute}"
    if full in sys.modules:
        return sys.modules[full]
    if module == "triton" and attribute in TRITON_DECORATORS:
        return _pass_through_decorator
    if full.startswith("triton.") and full[len("triton.") :] in TRITON_SUBMODULES:
        import importlib

        return importlib.import_module(full)
    if attribute[:1].isupper() or attribute in ("dtype", "constexpr"):
        return _StandInType(attribute, (_StandIn,), {"__module__": module})

    def unavailable(*args, **kwargs):
        raise RuntimeError(f"{full} is a stand-in: it is not available on SGLang's CPU engine")

    return unavailable


def _pass_through_decorator(*args, **kwargs):
    """``@jit``, ``@jit()`` and ``@autotune(configs=...)``: the function is left as it is, and is never launched."""
    if len(args) == 1 and callable(args[0]) and not kwargs:
        return args[0]
    return lambda function: function


if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
    sys.meta_path.append(StandInFinder())
