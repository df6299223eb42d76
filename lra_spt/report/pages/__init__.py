"""What all HTML pages of this project share: colours, base template and style sheet, charts, the writer."""
