"""`python -m controller.explain VERB …`: the verbs, without the rest of the binder."""

import os
import sys

from controller.explain.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
