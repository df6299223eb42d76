"""Many runs together: statistics, published numbers, the table and the HTML report."""
