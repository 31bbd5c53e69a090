"""`python -m toktier`: the command line."""

from toktier.cli import main

main()
