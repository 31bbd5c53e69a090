"""What shows that the checks themselves work: faults planted on purpose."""
