"""One module a subcommand: its `command` is the click command, its name the module's.

Modules import what is heavy (JAX, the references) inside the command, so that `toktier --help` stays quick.
"""
