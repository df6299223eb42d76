"""One module per data set; each makes a `builders.Source` from official files or a generator."""
