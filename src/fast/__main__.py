"""`python -m fast` is the command `fast`."""

from fast.cli import main

if __name__ == "__main__":
    main()
