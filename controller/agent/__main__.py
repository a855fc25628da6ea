"""`python -m controller.agent`: the agent alone, without the command of which it is a verb."""

import os
import sys

from controller.agent.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
