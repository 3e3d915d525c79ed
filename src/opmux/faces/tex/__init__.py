"""tex: NVIDIA's `transformer_engine_torch` by names, signatures and numbers, over the dispatcher.

`opmux.tex` (and `transformer_engine_fl_torch`) is the module itself: every public name stands in it, as callers take
them by `import *` and keep them, so what runs is switched inside the functions. What makes it:

| file | what |
|---|---|
| ops/ | the functions: NVIDIA's signatures over the ops of `opmux.specs`, one file a family |
| enums.py, quantized.py, grouped_tensor.py, layouts.py, ... | what those functions share |
| interface.py | the module, made of the functions; dtypes converted; enums and classes |
| versions.py | which version of the interface is served, and how the older one differs |
| base.py | `TEXBackendBase`: a backend as a class |
| registry.py | backends by name: registered, listed, chosen |
| backends/ | the built-in ones, and `template.py` to start from |
| overlap.py | the classes: communication overlap in a plain form |
"""
