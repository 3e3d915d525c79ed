"""tex: NVIDIA's `transformer_engine_torch` by names, signatures and numbers, over the dispatcher.

`opmux.tex` (and `transformer_engine_fl_torch`) is the module itself. It has every public name, because callers use
`import *` and keep the functions; the choice of backend is made inside the functions. Its files:

| file | what |
|---|---|
| ops/ | the functions: NVIDIA's signatures over the ops of `opmux.specs`, one file a family |
| enums.py, quantized.py, grouped_tensor.py, layouts.py, ... | what those functions share |
| interface.py | builds the module from functions, enums and classes; converts dtypes |
| versions.py | which version of the interface is provided, and how the older one differs |
| base.py | `TEXBackendBase`: a backend as a class |
| registry.py | backends by name: registered, listed, chosen |
| backends/ | the built-in backends, and `template.py` to copy |
| overlap.py | the classes for communication overlap, over torch.distributed |
"""
