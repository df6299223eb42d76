"""The commands of `lra-spt`, one module each: `parser()` defines the flags, `main(argv)` runs the command.

`main` imports jax after it has read the flags, so help and wrong flags need no jax.
"""

COMMANDS = {  # name: its line in the help
  'demo': 'pretrain and finetune on generated data and write report.html',
  'list': 'list the names of tasks, models, sets, configs and studies',
  'prepare': 'make a data set from official files or with a generator',
  'inspect': 'show what a prepared set holds: sizes, labels, copies, examples',
  'config': 'show every value of a config and where it comes from',
  'check': 'check that a mixer meets its contract: shape, look-ahead, padding, gradient',
  'train': 'train one run: pretraining, finetuning, test; the same command resumes it',
  'compare': 'train a mixer by a fixed recipe and write its table among baselines',
  'study': 'train all runs of a table or figure and write its report',
  'record': 'write a run folder from predictions made elsewhere, such as in PyTorch',
  'evaluate': 'evaluate a run on a split, with the weights of its best validation',
  'selftest': 'compare, time and choose the kernels that a config can use on this machine',
  'compile': 'compile the train step for a TPU slice without having one: memory and cost',
  'kernels': 'plot the convolution kernels of a run, learned and initial: kernels.png',
  'inside': 'measure how far the model of a run reads, by distance: inside.json',
  'report': 'write report.html from all runs under a folder',
  'export': 'export a table of runs (CSV, JSON, LaTeX, Markdown) or an encoder (safetensors)',
  'submit': 'write finished runs into one file that others can check',
  'verify': 'check such a file: every score again from its predictions',
  'doctor': 'check that runs and prepared sets are intact (every checksum, every format), or a cluster',
}
