"""A program that never answers."""

import time

if __name__ == "__main__":
    time.sleep(3600)
