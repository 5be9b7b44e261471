"""`python -m tepo_cli`, the same as `tepo`."""

from tepo_cli.main import main

main()
