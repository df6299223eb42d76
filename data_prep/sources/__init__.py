"""One module per data set: from official files, or a generator, to a `builders.Source`."""
