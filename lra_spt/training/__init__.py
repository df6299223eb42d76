"""One stage of training: state, optimizer, the jitted step, the loop, evaluation, checkpoints, metric writers."""
