"""What every HTML page of this project shares: colours, base template and style sheet, charts, the writer."""
