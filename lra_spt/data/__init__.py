"""What a task is, how its examples are split, and the stream of batches.

Import from the modules: `tasks` (what a task is), `splits` (who is in which split), `tokenizers` (text to
ids), `storage` (where a prepared set lies and whether it is whole), `pipeline` (batches).
"""
