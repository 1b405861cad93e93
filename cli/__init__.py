"""The command line, imported as ``geonp.cli``: parse, call the library, print."""
