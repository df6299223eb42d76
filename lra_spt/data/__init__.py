"""What a task is, how its examples are split, and the stream of batches.

Import from the modules: `tasks` (what a task is), `splits` (which example is in which split), `tokenizers`
(text to ids), `storage` (where a prepared set is and whether it is complete), `pipeline` (batches).
"""
