"""``python -m penstock`` is the command line."""

from penstock.app.cli.main import main

if __name__ == "__main__":
    main()
