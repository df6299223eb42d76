"""One data set a file: from official files, or a generator, to a `builders.Source`."""
