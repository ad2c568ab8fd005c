"""`python -m bridge` is `delay-bridge`."""

from bridge.cli import main

if __name__ == "__main__":
    main()
