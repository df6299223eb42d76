"""Tasks, their splits, prepared sets and the stream of batches; no jax.

Import from the modules: `tasks`, `splits` (the split of each example), `tokenizers` (text to ids), `prepared`
(places and checks of prepared sets), `examples` (random access), `pipeline` (batches).
"""
