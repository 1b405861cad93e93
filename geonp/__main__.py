"""``python -m geonp``: the command line."""

from geonp.cli.app import main

if __name__ == "__main__":
    main(prog_name="geonp")
