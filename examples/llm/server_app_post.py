"""start.py under the name that the server had of its own: it is one process here."""

from start import main

if __name__ == "__main__":
    main()
