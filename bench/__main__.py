"""python -m bench."""

from bench.driver import main

if __name__ == "__main__":
    raise SystemExit(main())
