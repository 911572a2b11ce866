"""Runs the lab's command as a module: python -m headrace_lab."""

from headrace_lab.main import main

if __name__ == "__main__":
    main()
