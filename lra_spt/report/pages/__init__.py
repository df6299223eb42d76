"""HTML pages, and what they share: colours, base template and style sheet, charts, the writer."""
