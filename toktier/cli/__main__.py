"""`python -m toktier.cli` is the `toktier` command."""

from toktier.cli import main

main()
