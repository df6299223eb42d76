"""The commands of `lra-spt`, one module each: `parser()` defines the flags, `main(argv)` runs the command.

What computes is imported inside `main`, after the flags are read, so help and wrong flags need no jax.
"""

COMMANDS = {  # what they do
  'demo': 'the whole story on generated data: pretrain, finetune, report.html',
  'list': 'the names of tasks, models, sets, configs, studies',
  'prepare': 'make a data set from official files or a generator',
  'inspect': 'what is in a prepared set: sizes, labels, copies, examples',
  'config': 'every value of a config and where it is from',
  'check': 'whether the mixer of a config keeps the contract: shape, look-ahead, padding, gradient',
  'train': 'one run: pretraining, finetuning, test; the same command resumes it',
  'study': 'all runs of a table or figure, and its report',
  'record': 'the folder of a run from predictions made elsewhere, such as in PyTorch',
  'evaluate': 'the metrics of a finished run on a split, with the weights of its best validation',
  'selftest': 'the kernels that a config could use on this machine: compared, timed, chosen',
  'compile': 'the train step for a TPU slice without having one: does it fit, its cost',
  'kernels': 'convolution kernels of a run, learned and initial: kernels.png',
  'report': 'report.html of all runs under a folder',
  'export': 'the table of a study, or of runs, as CSV, JSON, LaTeX or Markdown',
  'doctor': 'whether runs and prepared sets are still what was written: every digest, every form',
  'completion': 'the lines that let a shell complete all this: bash, zsh',
}
