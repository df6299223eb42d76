"""One stage of training: state, optimizer, jitted step, loop, evaluation, checkpoints, metric writers."""
