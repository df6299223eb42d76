"""The usual way to read a prepared set: Grain over TFDS's data source, as both document it."""

import grain

from data_prep import builders


def batches(folder, seed, threads, batch_size):
  """Shuffled lists of `batch_size` decoded examples, without padding or splits, for ever."""
  source = builders.tfds.builder_from_directory(folder).as_data_source(split='train')
  order = grain.MapDataset.source(source).seed(seed).shuffle().repeat()
  options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4 * threads)
  return iter(order.to_iter_dataset(options).batch(batch_size, batch_fn=list))
