"""Run the command line as a module: python -m headrace."""

from headrace.cli.main import main

if __name__ == "__main__":
    main()
