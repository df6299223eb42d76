"""Studies: many runs that answer one question, their plan, cost and order; `lra-spt compare`."""
